"""Start, watch and end processes by their ids; nothing here ever ends a process by its name.

The supervisor is a child subreaper: whatever a Slurm daemon leaves behind (slurmstepd, a user's processes) becomes its
child, so the whole tree can be found from one id and ended, also after a failure.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nodedaemon.core.errors import OperatingError

PR_SET_CHILD_SUBREAPER = 36
POLL_SECONDS = 0.02
TAIL_LINES = 5


@dataclass(slots=True)
class Child:
    """A process of ours with what it takes to start it again."""

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
        """Signal it and wait; after `patience_s` it is killed. Ending one that has ended is fine."""
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


def wait_until(ready: Callable[[], bool], what: str, seconds: float, child: Child | None = None) -> None:
    """Poll until `ready`; fails with the last lines of the child's log if it ends or the time is over."""
    deadline = time.monotonic() + seconds
    while not ready():
        if child is not None and child.pid is None:
            raise OperatingError(f"cluster: start {child.name}: it ended: {child.tail()}; see {child.log}")
        if time.monotonic() > deadline:
            log = f": {child.tail()}; see {child.log}" if child else ""
            raise OperatingError(f"cluster: wait for {what}: not within {seconds:g} s{log}")
        time.sleep(POLL_SECONDS)


def start_time(pid: int) -> int | None:
    """Clock ticks after boot at which `pid` started: with it an id names one process for ever. None if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def descendants(root: int) -> Iterator[int]:
    """Ids of all processes below `root`, children after their parents."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    pending = list(children.get(root, ()))
    while pending:
        pid = pending.pop(0)
        yield pid
        pending.extend(children.get(pid, ()))


def kill_descendants(root: int, patience_s: float = 10.0) -> None:
    """Kill everything below `root` and reap what becomes our child, until nothing is left."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        pids = list(descendants(root))
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        reap_orphans()
        time.sleep(POLL_SECONDS)


def reap_orphans() -> None:
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
