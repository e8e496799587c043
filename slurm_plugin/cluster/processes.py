"""Starts, watches and ends processes by their ids, never by their names.

The supervisor is a child subreaper: every process that a Slurm daemon leaves behind (slurmstepd, a user's processes)
becomes its child. The whole tree can therefore be found from one id and ended, even after a failure.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from nodedaemon.core.errors import OperatingError

PR_SET_CHILD_SUBREAPER = 36
POLL_SECONDS = 0.02
TAIL_LINES = 5


@dataclass(slots=True)
class Child:
    """A process of the cluster, with everything needed to start it again."""

    name: str
    argv: tuple[str, ...]
    environment: dict[str, str]
    log: Path
    popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                self.argv,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
            )

    @property
    def pid(self) -> int | None:
        return self.popen.pid if self.popen is not None and self.popen.poll() is None else None

    def end(self, with_signal: int = signal.SIGTERM, patience_s: float = 10.0) -> None:
        """Send the signal and wait, then kill after `patience_s`. Does nothing if the process has ended."""
        if self.popen is None or self.popen.poll() is not None:
            return
        self.popen.send_signal(with_signal)
        try:
            self.popen.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()

    def tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return " | ".join(line.strip() for line in lines[-TAIL_LINES:])


def adopt_orphans() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def wait_until(ready: Callable[[], bool], what: str, seconds: float, child: Child) -> None:
    """Poll until `ready`. If the child ends or the time is up, fail with the last lines of its log."""
    deadline = time.monotonic() + seconds
    while not ready():
        if child.pid is None:
            raise OperatingError(f"cluster: start {child.name}: the process ended: {child.tail()}; see {child.log}")
        if time.monotonic() > deadline:
            raise OperatingError(f"cluster: wait for {what}: not within {seconds:g} s: {child.tail()}; see {child.log}")
        time.sleep(POLL_SECONDS)


def start_time(pid: int) -> int | None:
    """Start time in clock ticks after boot, which distinguishes processes with the same id. None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] == b"Z" else int(fields[19])


def is_running(pid: int, started: int | None) -> bool:
    """Whether the process that started at `started` still runs."""
    return started is not None and start_time(pid) == started


def descendants(root: int) -> list[int]:
    """The ids of all processes below `root`."""
    return [process.pid for process in psutil.Process(root).children(recursive=True)]


def kill_descendants(root: int, patience_s: float = 10.0) -> None:
    """Kill all processes below `root` and reap those that become our children, until none is left."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline and (pids := descendants(root)):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        reap_orphans()
        time.sleep(POLL_SECONDS)


def reap_orphans() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
