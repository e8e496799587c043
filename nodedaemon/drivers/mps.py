"""NVIDIA MPS, started for one user on request (`ShareMode=mps`).

An MPS server belongs to one uid, so lanes of one user run at once and users take turns. The control daemon is a foreign
program: it is started as the user, spoken to on its standard input, and every exchange has a deadline.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from nodedaemon.core.errors import OperatingError
from nodedaemon.core.types import MIB, DeviceId

CONTROL = "nvidia-cuda-mps-control"
_TIMEOUT_SECONDS = 10.0


class MpsServer:
    """The MPS control daemon of one user on one node."""

    def __init__(self, uid: int, gid: int, run_directory: Path, control: str = CONTROL) -> None:
        self._uid = uid
        self._gid = gid
        self._directory = run_directory / f"mps-{uid}"
        self._control = control

    def environment(self, thread_percent: int = 100, pinned_bytes: dict[DeviceId, int] | None = None) -> dict[str, str]:
        """What a client's environment needs; a limit of 0 is no limit."""
        found = {
            "CUDA_MPS_PIPE_DIRECTORY": str(self._directory / "pipe"),
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(thread_percent),
        }
        limits = [f"{uuid}={-(-size // MIB)}M" for uuid, size in (pinned_bytes or {}).items() if size]
        if limits:
            found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(limits)
        return found

    def start(self, devices: tuple[DeviceId, ...]) -> None:
        """Start the control daemon as the user; one that runs already is kept."""
        if self.is_running():
            return
        for name in ("pipe", "log"):
            folder = self._directory / name
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
            if os.geteuid() == 0:
                os.chown(folder, self._uid, self._gid)
        self._run(["-d"], "", {"CUDA_VISIBLE_DEVICES": ",".join(devices)})

    def stop(self) -> None:
        """Ask the control daemon to end; clients under way finish first."""
        if self.is_running():
            self._run([], "quit\n", {})

    def is_running(self) -> bool:
        pid_file = self._directory / "pipe" / f"{CONTROL}.pid"
        try:
            pid = int(pid_file.read_text())
            os.kill(pid, 0)
        except (OSError, ValueError):
            return False
        return True

    def set_default_threads(self, thread_percent: int) -> None:
        self._run([], f"set_default_active_thread_percentage {thread_percent}\n", {})

    def _run(self, arguments: list[str], text: str, extra: dict[str, str]) -> None:
        program = shutil.which(self._control)
        if program is None:
            raise OperatingError(f"start MPS: {self._control}: not found; install it or set ShareMode=timeslice")
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
                timeout=_TIMEOUT_SECONDS,
                check=False,
                **identity,  # type: ignore[call-overload]
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise OperatingError(f"MPS: uid {self._uid}: {error}; see {self._directory / 'log'}") from error
        if answer.returncode != 0:
            why = answer.stderr.strip() or answer.stdout.strip() or f"exit {answer.returncode}"
            raise OperatingError(f"MPS: uid {self._uid}: {why}; see {self._directory / 'log'}")
