"""A node with emulated GPUs: a real salusd on the cuda driver, and jobs that run examples/cuda_loop.py."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from typing import Any

from tests.support import emulator as emulators
from tests.support.emulator import MIB, ROOT, Emulator
from tests.support.salusd import DEADLINE_S, Salusd

LIBSALUS = ROOT / "nodedaemon/job/libsalus"
LOOP = ROOT / "examples/cuda_loop.py"
ARM = "import ctypes, runpy; ctypes.CDLL(None).salus_point_arm({}, {}); runpy.run_path({!r}, run_name='__main__')"


def build_libsalus() -> None:
    emulators.BUILD.mkdir(exist_ok=True)
    with (emulators.BUILD / ".libsalus.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(["make", "-s", "-C", str(LIBSALUS), f"PYTHON={sys.executable}", "all", "tests"], check=True)


class CudaNode(Salusd):
    """Use as a context manager; it ends every job that it started."""

    def __init__(self, devices: str = "tiny-1g", config: str = "", variant: str = "emulator") -> None:
        build_libsalus()
        super().__init__(config=config, devices="AutoDetect=nvml")
        self.emulator: Emulator = emulators.make(self.directory, devices, variant)
        self.environment = self.emulator.environment()
        self.jobs: list[subprocess.Popen[str]] = []

    def stop(self) -> int | None:
        for job in self.jobs:
            if job.poll() is None:
                job.kill()
            job.communicate()
        return super().stop()

    def job(
        self,
        *arguments: str,
        persistent_mib: int = 128,
        ephemeral_mib: int = 64,
        job_class: str = "normal",
        point: tuple[int, int] | None = None,
        device: str = "",
        program: tuple[str, ...] = (str(LOOP),),
        **environment: str,
    ) -> subprocess.Popen[str]:
        """Start a loop as a job of its own; `point` kills it at the nth pass of a point in libsalus."""
        fields = {
            "name": f"job{len(self.jobs)}",
            "signature": "cuda_loop",
            "class": job_class,
            "persistent_bytes": persistent_mib * MIB,
            "ephemeral_bytes": ephemeral_mib * MIB,
            "device": device,
        }
        if device:
            environment["CUDA_VISIBLE_DEVICES"] = device
        library = str(LIBSALUS / "build/cuda-points/libcuda.so.1") if point else ""
        command = ["-c", ARM.format(*point, str(LOOP))] if point else [*program]
        launcher = [sys.executable, str(ROOT / "tests/support/cuda_job.py"), str(self.control), library]
        process = subprocess.Popen(
            [*launcher, json.dumps(fields), *command, *arguments],
            env=self.emulator.environment(**environment),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.jobs.append(process)
        return process

    def report(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        """The loop's own report, after it has ended successfully."""
        out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, f"exit {process.returncode}\n{out}\n{err}\n{self.log_tail()}"
        return self.last_report(out)

    @staticmethod
    def last_report(out: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found


def wait_started(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
