"""The driver limits the memory of a Slurm job's cgroup, whether or not the job loads libsalus."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cuda_node import CudaNode
from tests.support.emulator import MIB

MOUNTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
PERSISTENT_MIB, EPHEMERAL_MIB = 128, 64

# A program that bypasses Salus: no hello, no libsalus. It joins the cgroup itself, in place of slurmstepd.
PROGRAM = """
import json, os, sys
if sys.argv[1]: open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
print("ready", flush=True); sys.stdin.readline()
from cuda.bindings import driver as d
d.cuInit(0); d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(d.cuDeviceGet(0)[1])[1])
def try_(mib):
    code, address = d.cuMemAlloc(mib << 20)
    if not code: d.cuMemFree(address)
    return code.name
print(json.dumps([try_(mib) for mib in map(int, sys.argv[2:])]), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Path]:
    """A real cgroup v2 with a name like those of Slurm, because salusd asks the kernel for a process's cgroup."""
    mount = next((one for one in MOUNTS if (one / "cgroup.controllers").exists()), None)
    if mount is None or not os.access(mount, os.W_OK):
        pytest.skip("limits need a cgroup v2, and this machine has no writable one")
    scope = mount / f"salus{os.getpid()}_slurmstepd.scope"
    job = scope / "job_4711"
    job.mkdir(parents=True)
    yield job
    job.rmdir()
    scope.rmdir()


def limit_of(node: CudaNode, group: Path) -> int | None:
    path = "/" + "/".join(group.parts[-2:])
    code = f"""
import pynvml as n
n.nvmlInit(); limits = n.c_nvmlGetMemoryLimits_v1_t({path.encode()!r})
n.nvmlDeviceGetMemoryLimits_v1(n.nvmlDeviceGetHandleByIndex(0), limits)
print(limits.hardLimit)
"""
    limit = int(node.emulator.run(code).stdout)
    return None if limit == (1 << 64) - 1 else limit


def run(node: CudaNode, group: Path | None, *sizes: int) -> tuple[subprocess.Popen[str], list[str]]:
    """Start the program, report it to salusd as SPANK does, and let it allocate. `end` ends it."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(group or ""), *map(str, sizes)],
        env=node.emulator.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    node.jobs.append(process)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    if group is not None:
        assert node.ask("task_start", job="4711", uid=0, pid=process.pid)["ok"]
    process.stdin.write("go\n")
    process.stdin.flush()
    return process, json.loads(process.stdout.readline())


def end(process: subprocess.Popen[str]) -> None:
    process.communicate("end\n", timeout=30)


def test_the_driver_enforces_the_limit_of_a_job_until_the_job_ends(group: Path) -> None:
    segment = f"salus:1;adm=1;K=shared;P={PERSISTENT_MIB * MIB};E={EPHEMERAL_MIB * MIB}"
    with CudaNode("tiny-1g", "MaxLanes=1") as node:
        assert node.ask("job_start", job="4711", uid=0, user="root", gpus="0", segment=segment)["ok"]
        # The context takes 16 MiB of the limit.
        process, answers = run(node, group, 400, PERSISTENT_MIB + EPHEMERAL_MIB - 16, PERSISTENT_MIB)
        assert answers == ["CUDA_ERROR_OUT_OF_MEMORY", "CUDA_SUCCESS", "CUDA_SUCCESS"]
        assert limit_of(node, group) == (PERSISTENT_MIB + EPHEMERAL_MIB) * MIB
        # After a restart, salusd removes a limit that it did not set itself.
        node.kill()
        node.start()
        end(process)
        assert node.ask("job_end", job="4711", uid=0)["ok"]
        assert limit_of(node, group) is None
        # Negative control: without the limit, and outside the cgroup, the same program can use the whole device.
        process, answers = run(node, None, 400)
        assert answers == ["CUDA_SUCCESS"]
        end(process)
