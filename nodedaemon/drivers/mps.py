"""NVIDIA MPS, started for one user on request (`ShareMode=mps`).

An MPS server belongs to one uid, so lanes of one user run at the same time and users take turns. The control daemon is
started as the user and gets its commands on standard input; every exchange has a deadline. Limits are set as defaults
of the server and again in each client's environment, so that they also apply to a client that drops the variables.

The user owns the directories and the processes of the server, so salusd believes nothing that it finds there: it reads
only a small regular file and a bounded output, and changes nothing in these directories itself.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from nodedaemon.core.errors import OperatingError
from nodedaemon.core.types import MIB, DeviceId
from nodedaemon.drivers.process import command_name, real_uid
from nodedaemon.wire.trust import read_own_file

CONTROL = "nvidia-cuda-mps-control"
#: The kernel keeps this many bytes of a program's name.
COMMAND_NAME_BYTES = 15
PID_BYTES_MAX = 16
OUTPUT_BYTES_MAX = 4096
# Runs as the user. The kernel must not spare the user's processes when memory runs out, as it spares salusd. A stale
# pid file, named by the first argument, would look like that of the new daemon.
WRAPPER = '{ echo 0 >/proc/self/oom_score_adj; } 2>/dev/null; [ -z "$1" ] || rm -f "$1"; shift; exec "$@"'


class MpsLimits(NamedTuple):
    """The limits of one client: its share of the processors, and the memory that it may pin per device (0: no limit).

    Devices are named by ordinal, because MPS ignored limits by UUID. NVIDIA's k8s-device-plugin 0.15 changed to
    ordinals for the same reason. All devices have the same limit, so their order does not matter.
    """

    thread_percent: int
    pinned_bytes: int
    device_count: int


class MpsServer:
    """The MPS control daemon of one user on one node."""

    def __init__(self, uid: int, gid: int, run_directory: Path, timeout_s: float = 10.0) -> None:
        self._uid = uid
        self._gid = gid
        self._directory = run_directory / f"mps-{uid}"
        self._timeout_s = timeout_s

    def environment(self, limits: MpsLimits) -> dict[str, str]:
        """The variables that a client needs."""
        variables = {
            "CUDA_MPS_PIPE_DIRECTORY": str(self._directory / "pipe"),
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(limits.thread_percent),
        }
        if limits.pinned_bytes:
            sizes = [f"{ordinal}={_mebibytes(limits.pinned_bytes)}" for ordinal in range(limits.device_count)]
            variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(sizes)
        return variables

    def start(self, devices: tuple[DeviceId, ...], limits: MpsLimits) -> None:
        """Start the control daemon as the user, with these limits as defaults, unless it is running already."""
        if self.is_running():
            return
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._directory.chmod(0o755)
            for name in ("pipe", "log"):
                folder = self._directory / name
                folder.mkdir(mode=0o700, exist_ok=True)
                if folder.stat().st_uid != self._uid:
                    os.chown(folder, self._uid, self._gid)
        except OSError as error:
            raise OperatingError(
                f"start MPS: uid {self._uid}: {self._directory}: {error.strerror}; salusd must own the directory"
            ) from error
        self._run(["-d"], "", {"CUDA_VISIBLE_DEVICES": ",".join(devices)}, stale_file=str(self._pid_file))
        if not self.is_running():
            raise OperatingError(f"start MPS: uid {self._uid}: it did not stay up; see {self._directory / 'log'}")
        commands = [f"set_default_active_thread_percentage {limits.thread_percent}\n"]
        if limits.pinned_bytes:
            size = _mebibytes(limits.pinned_bytes)
            ordinals = range(limits.device_count)
            commands += [f"set_default_device_pinned_mem_limit {ordinal} {size}\n" for ordinal in ordinals]
        self._run([], "".join(commands), {})

    def stop(self) -> None:
        """Ask the control daemon to stop. Running clients finish first."""
        if self.is_running():
            self._run([], "quit\n", {})

    def is_running(self) -> bool:
        """Whether the process in the pid file is a control daemon: after a crash, another process may have its pid."""
        try:
            pid = int(read_own_file(self._pid_file, owner=self._uid)[:PID_BYTES_MAX])
        except (OperatingError, ValueError):
            return False
        return command_name(pid) == CONTROL.encode()[:COMMAND_NAME_BYTES] and real_uid(pid) == self._uid

    @property
    def _pid_file(self) -> Path:
        return self._directory / "pipe" / f"{CONTROL}.pid"

    def _run(self, arguments: list[str], text: str, extra: dict[str, str], stale_file: str = "") -> None:
        program = shutil.which(CONTROL)
        if program is None:
            raise OperatingError(f"start MPS: {CONTROL}: not found; install it or set ShareMode=timeslice")
        environment = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "CUDA_MPS_PIPE_DIRECTORY": str(self._directory / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(self._directory / "log"),
            **extra,
        }
        identity = {"user": self._uid, "group": self._gid, "extra_groups": ()} if os.geteuid() == 0 else {}
        output = _sealed_file(OUTPUT_BYTES_MAX)
        try:
            answer = subprocess.run(  # noqa: S603 - found on the daemon's own PATH
                ["/bin/sh", "-c", WRAPPER, "sh", stale_file, program, *arguments],
                input=text,
                env=environment,
                stdout=output,
                stderr=output,
                text=True,
                timeout=self._timeout_s,
                check=False,
                **identity,  # type: ignore[call-overload]
            )
            written = os.pread(output, OUTPUT_BYTES_MAX, 0)
        except subprocess.TimeoutExpired as error:
            raise self._error(f"{CONTROL} timed out after {self._timeout_s:g} s") from error
        except OSError as error:
            raise self._error(str(error)) from error
        finally:
            os.close(output)
        if answer.returncode != 0:
            words = written.rstrip(b"\0").decode(errors="replace").split()
            shown = "".join(one if one.isprintable() else "?" for one in " ".join(words))
            raise self._error(shown or f"exit {answer.returncode}")

    def _error(self, why: str) -> OperatingError:
        return OperatingError(f"MPS: uid {self._uid}: {why}; see {self._directory / 'log'}")


def _sealed_file(size_bytes: int) -> int:
    """A file in memory that cannot grow: a process that writes more gets an error. The caller closes it.

    With a pipe, the process would have to be read as fast as it writes, and a child that keeps the pipe open would
    make the reader wait.
    """
    descriptor = os.memfd_create("mps-output", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size_bytes)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    return descriptor


def _mebibytes(size_bytes: int) -> str:
    return f"{-(-size_bytes // MIB)}M"
