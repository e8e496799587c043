"""NVIDIA MPS, started for one user on request (`ShareMode=mps`).

An MPS server belongs to one uid, so lanes of one user run at once and users take turns. The control daemon is a foreign
program: it is started as the user, spoken to on its standard input, and every exchange has a deadline. Limits are set
as the server's defaults and again in each client's environment, so that a client that drops the variables has them too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from nodedaemon.core.errors import OperatingError
from nodedaemon.core.types import MIB, DeviceId

CONTROL = "nvidia-cuda-mps-control"
_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class MpsLimits:
    """Of one client: its share of the processors, and the memory that it may pin on each device; 0 is no limit.

    Devices are named by ordinal: limits by UUID were found not to be applied (NVIDIA's k8s-device-plugin 0.15 changed
    over for that). All have the same limit, so it does not matter whose order of devices the ordinals are in.
    """

    thread_percent: int
    pinned_bytes: int
    device_count: int


class MpsServer:
    """The MPS control daemon of one user on one node."""

    def __init__(
        self,
        uid: int,
        gid: int,
        run_directory: Path,
        control: str = CONTROL,
        timeout_s: float = _TIMEOUT_SECONDS,
    ) -> None:
        self._uid = uid
        self._gid = gid
        self._directory = run_directory / f"mps-{uid}"
        self._control = control
        self._timeout_s = timeout_s

    def environment(self, limits: MpsLimits) -> dict[str, str]:
        """What a client's environment needs."""
        found = {
            "CUDA_MPS_PIPE_DIRECTORY": str(self._directory / "pipe"),
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(limits.thread_percent),
        }
        if limits.pinned_bytes:
            sizes = [f"{place}={_mebibytes(limits.pinned_bytes)}" for place in range(limits.device_count)]
            found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(sizes)
        return found

    def start(self, devices: tuple[DeviceId, ...], limits: MpsLimits) -> None:
        """Start the control daemon as the user with these defaults; one that runs already is kept as it is."""
        if self.is_running():
            return
        try:
            for name in ("pipe", "log"):
                folder = self._directory / name
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(0o700)
                if os.geteuid() == 0:
                    os.chown(folder, self._uid, self._gid)
            # Of one that died: it would be taken for the new one's.
            self._pid_file.unlink(missing_ok=True)
        except OSError as error:
            raise OperatingError(
                f"start MPS: uid {self._uid}: {self._directory}: {error.strerror}; salusd must own the directory"
            ) from error
        self._run(["-d"], "", {"CUDA_VISIBLE_DEVICES": ",".join(devices)})
        if not self.is_running():
            raise OperatingError(f"start MPS: uid {self._uid}: it did not stay up; see {self._directory / 'log'}")
        places = range(limits.device_count if limits.pinned_bytes else 0)
        size = _mebibytes(limits.pinned_bytes)
        orders = [f"set_default_active_thread_percentage {limits.thread_percent}\n"]
        orders += [f"set_default_device_pinned_mem_limit {place} {size}\n" for place in places]
        self._run([], "".join(orders), {})

    def stop(self) -> None:
        """Ask the control daemon to end; clients under way finish first."""
        if self.is_running():
            self._run([], "quit\n", {})

    def is_running(self) -> bool:
        """Whether the pid file's process is a control daemon: after a crash the pid may be another's."""
        try:
            pid = int(self._pid_file.read_text())
            return CONTROL.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return False

    @property
    def _pid_file(self) -> Path:
        return self._directory / "pipe" / f"{CONTROL}.pid"

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
