"""MPS servers per user, with a stand-in for the control program, because MPS needs a GPU."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodedaemon.core.errors import OperatingError
from nodedaemon.core.types import DeviceId
from nodedaemon.drivers.mps import CONTROL, MpsLimits, MpsServer
from tests.support import mps_control
from tests.support.cuda_node import CudaNode
from tests.support.salusd import wait_until

DEVICES = (DeviceId("GPU-11aa"), DeviceId("GPU-22bb"))
LIMITS = MpsLimits(thread_percent=40, pinned_bytes=3 << 30, device_count=2)
NOBODY = 65534


@pytest.fixture
def run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where servers keep their files. Servers that still run at the end are killed."""
    for folder in (tmp_path, *(one for one in tmp_path.parents if one.name.startswith(("pytest-", "popen-")))):
        folder.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    yield tmp_path / "run"
    for pid_file in tmp_path.glob(f"run/mps-*/pipe/{CONTROL}.pid"):
        end(int(pid_file.read_text()))


def end(pid: int) -> None:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it may end by itself
        if CONTROL.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


def pid_of(run_directory: Path, uid: int) -> int:
    return int((run_directory / f"mps-{uid}/pipe/{CONTROL}.pid").read_text())


def test_a_server_starts_as_its_user_with_its_limits_and_stops(run_directory: Path) -> None:
    mps_control.write(run_directory.parent / "bin")
    servers = {uid: MpsServer(uid, uid, run_directory) for uid in ((0, NOBODY) if os.geteuid() == 0 else (0,))}
    for uid, server in servers.items():
        assert not server.is_running()
        server.start(DEVICES, LIMITS)
        assert server.is_running()
        log = run_directory / f"mps-{uid}/log"
        assert (log / "devices").read_text() == "GPU-11aa,GPU-22bb\n"
        assert (log / "orders").read_text().splitlines() == [
            "set_default_active_thread_percentage 40",
            "set_default_device_pinned_mem_limit 0 3072M",
            "set_default_device_pinned_mem_limit 1 3072M",
        ]
        if os.geteuid() == 0:
            assert int((log / "uid").read_text()) == uid
            assert log.stat().st_uid == uid
        assert log.stat().st_mode & 0o77 == 0, "no other user can talk to it"
        assert server.environment(LIMITS)["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=3072M,1=3072M"
    pid = pid_of(run_directory, 0)
    servers[0].start(DEVICES, LIMITS)
    assert pid_of(run_directory, 0) == pid, "a running server is kept"
    for server in servers.values():
        server.stop()
        wait_until(lambda one=server: not one.is_running(), "it is gone")
        server.stop()


def test_a_crashed_server_is_noticed_and_started_again(run_directory: Path) -> None:
    mps_control.write(run_directory.parent / "bin")
    server = MpsServer(os.getuid(), os.getgid(), run_directory)
    server.start(DEVICES, LIMITS)
    first = pid_of(run_directory, os.getuid())
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not server.is_running(), "the crash is noticed")
    server.stop()
    # Its pid file remains and may name another process by now. Such a process does not count as the server.
    (run_directory / f"mps-{os.getuid()}/pipe/{CONTROL}.pid").write_text(str(os.getpid()))
    assert not server.is_running()
    server.start(DEVICES, LIMITS)
    assert pid_of(run_directory, os.getuid()) not in (first, os.getpid())
    server.stop()


@pytest.mark.parametrize(
    ("misbehaviour", "word"),
    [
        ({"at_start": "exec sleep 30"}, "timed out"),
        ({"at_order": "exec sleep 30"}, "timed out"),
        ({"at_start": "echo 'Permission denied' >&2; exit 1"}, "Permission denied"),
        ({"at_start": "exit 0"}, "did not stay up"),
    ],
)
def test_a_server_that_fails_or_hangs_is_an_error_before_the_deadline(
    run_directory: Path, misbehaviour: dict[str, str], word: str
) -> None:
    mps_control.write(run_directory.parent / "bin", **misbehaviour)
    server = MpsServer(os.getuid(), os.getgid(), run_directory, timeout_s=0.5)
    with pytest.raises(OperatingError, match=word):
        server.start(DEVICES, LIMITS)


def test_a_missing_program_or_an_unusable_directory_is_an_error(run_directory: Path) -> None:
    server = MpsServer(os.getuid(), os.getgid(), run_directory)
    with pytest.raises(OperatingError, match="not found; install it"):
        server.start(DEVICES, LIMITS)
    (run_directory.parent / "bin").mkdir()
    (run_directory.parent / "bin" / CONTROL).write_text("not executable")
    with pytest.raises(OperatingError, match="not found; install it"):
        server.start(DEVICES, LIMITS)
    blocked = run_directory.parent / "file"
    blocked.write_text("")
    with pytest.raises(OperatingError, match="must own the directory"):
        MpsServer(os.getuid(), os.getgid(), blocked).start(DEVICES, LIMITS)


JOB = """
import json, os
from cuda.bindings import driver as d
d.cuInit(0); d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(d.cuDeviceGet(0)[1])[1])
names = [n for n in os.environ if n.startswith("CUDA_MPS")]
print(json.dumps({"answers": [d.cuMemAlloc(mib << 20)[0].name for mib in (300, 100)], "names": sorted(names)}))
"""


def test_a_job_runs_under_its_users_server_with_both_limits(run_directory: Path) -> None:
    """ShareMode=mps through salusd: environment, share and pinned memory, on the emulated device's own MPS mode."""
    with CudaNode("tiny-1g", "ShareMode=mps\nMpsThreads=50%\nMpsPinnedMemory=200M") as node:
        command = f"env SALUS_EMULATOR_STATE={node.emulator.state} {node.emulator.libraries}/salus-emulator mps 0"
        mps_control.write(run_directory.parent / "bin", emulator=command)
        # SALUS_DISABLE: the limit is the device's, not libsalus's.
        job = node.job("-c", JOB, program=(), persistent_mib=512, SALUS_DISABLE="1")
        report = node.report(job)
        assert report["answers"] == ["CUDA_ERROR_OUT_OF_MEMORY", "CUDA_SUCCESS"]
        assert report["names"] == [
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
            "CUDA_MPS_PIPE_DIRECTORY",
        ]
        assert "mps=1" in node.emulator.control("show")
        orders = node.socket.parent / f"mps-{os.getuid()}/log/orders"
        assert "set_default_active_thread_percentage 50" in orders.read_text()
        # The last job of the user is over: other users' clients must not wait for this server.
        wait_until(lambda: "quit" in orders.read_text(), "its server is stopped")
        wait_until(lambda: "mps=0" in node.emulator.control("show"), "the device is shared by time slices again")


def test_a_job_gets_time_slices_if_the_control_program_fails(run_directory: Path) -> None:
    with CudaNode("tiny-1g", "ShareMode=mps") as node:
        mps_control.write(run_directory.parent / "bin", at_start="echo broken >&2; exit 3")
        report = node.report(node.job("-c", JOB, program=(), persistent_mib=512))
        assert report["names"] == []
        assert "MPS not started, the job gets time slices" in node.log_tail()
