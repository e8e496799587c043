"""NVIDIA MPS, started for one user on request (`ShareMode=mps`).

An MPS server belongs to one uid, so lanes of one user run at the same time and users take turns. The control daemon is
started as the user and gets its commands on standard input; every exchange has a deadline. Limits are set as defaults
of the server and again in each client's environment, so that they also apply to a client that drops the variables.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from nodedaemon.core.errors import OperatingError
from nodedaemon.core.types import MIB, DeviceId

CONTROL = "nvidia-cuda-mps-control"


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
            for name in ("pipe", "log"):
                folder = self._directory / name
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(0o700)
                if os.geteuid() == 0:
                    os.chown(folder, self._uid, self._gid)
            # A stale pid file would look like that of the new daemon.
            self._pid_file.unlink(missing_ok=True)
        except OSError as error:
            raise OperatingError(
                f"start MPS: uid {self._uid}: {self._directory}: {error.strerror}; salusd must own the directory"
            ) from error
        self._run(["-d"], "", {"CUDA_VISIBLE_DEVICES": ",".join(devices)})
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
            pid = int(self._pid_file.read_text())
            return CONTROL.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return False

    @property
    def _pid_file(self) -> Path:
        return self._directory / "pipe" / f"{CONTROL}.pid"

    def _run(self, arguments: list[str], text: str, extra: dict[str, str]) -> None:
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
        try:
            answer = subprocess.run(  # noqa: S603 - found on the daemon's own PATH
                [program, *arguments],
                input=text,
                env=environment,
                capture_output=True,
                text=True,
                timeout=self._timeout_s,
                check=False,
                **identity,  # type: ignore[call-overload]
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise OperatingError(f"MPS: uid {self._uid}: {error}; see {self._directory / 'log'}") from error
        if answer.returncode != 0:
            why = answer.stderr.strip() or answer.stdout.strip() or f"exit {answer.returncode}"
            raise OperatingError(f"MPS: uid {self._uid}: {why}; see {self._directory / 'log'}")


def _mebibytes(size_bytes: int) -> str:
    return f"{-(-size_bytes // MIB)}M"
