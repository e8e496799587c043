"""A process of a job: told from all others by pid and start time, watched and signalled through a pidfd.

A pid alone names nobody: it is reused. A `Process` is taken once, from the socket's own credentials, and every later
question is answered for that process or not at all.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from nodedaemon.core.errors import OperatingError, PeerError

PROC = Path("/proc")
_SO_PEERPIDFD = 77


class ProcessState(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class PeerCredentials:
    """The process that made the connection, as the kernel reports it."""

    pid: int
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """What /proc/PID/stat says: `start_ticks` since boot never changes in a process's life."""

    state: str
    parent_pid: int
    start_ticks: int


def peer_credentials(connection: socket.socket) -> PeerCredentials:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return PeerCredentials(*struct.unpack("3i", raw))


def read_stat(pid: int, proc: Path = PROC) -> ProcessStat | None:
    """None when the process is gone. The command name may hold spaces and brackets, so it is cut off from the right."""
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    if len(fields) < 20:
        return None
    return ProcessStat(fields[0], int(fields[1]), int(fields[19]))


class Process:
    """One process, for as long as its pidfd is held."""

    def __init__(self, pid: int, start_ticks: int, pidfd: int, proc: Path = PROC) -> None:
        self.pid = pid
        self.start_ticks = start_ticks
        self.pidfd = pidfd
        self._proc = proc

    @classmethod
    def of_peer(cls, connection: socket.socket) -> Process:
        """The process at the other end; raises `PeerError` when it is gone already."""
        pid = peer_credentials(connection).pid
        try:
            pidfd = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
        except OSError:
            return cls.of_pid(pid)
        # The kernel's pidfd is of the very process that connected; one that died since cannot lend its pid to another.
        stat = read_stat(pid)
        if stat is None or not _is_alive(pidfd):
            os.close(pidfd)
            raise PeerError(f"identify peer: pid {pid}: it is gone")
        return cls(pid, stat.start_ticks, pidfd)

    @classmethod
    def of_pid(cls, pid: int, start_ticks: int | None = None, proc: Path = PROC) -> Process:
        """The process with this pid now; with `start_ticks` only if it is the one that was meant."""
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            raise PeerError(f"identify process: pid {pid}: {error.strerror}") from error
        stat = read_stat(pid, proc)
        if stat is None or (start_ticks is not None and stat.start_ticks != start_ticks):
            os.close(pidfd)
            raise PeerError(f"identify process: pid {pid}: it is another process now")
        return cls(pid, stat.start_ticks, pidfd, proc)

    def state(self) -> ProcessState:
        stat = read_stat(self.pid, self._proc)
        if stat is None or stat.start_ticks != self.start_ticks or stat.state in "ZX":
            return ProcessState.GONE
        return ProcessState.STOPPED if stat.state in "Tt" else ProcessState.RUNNING

    def end(self, signal_number: int = signal.SIGKILL) -> None:
        """Send a signal to exactly this process; one that is gone is no error."""
        try:
            signal.pidfd_send_signal(self.pidfd, signal_number)
        except ProcessLookupError:
            return
        except PermissionError as error:
            raise OperatingError(f"signal session: pid {self.pid}: {error.strerror}; run salusd as root") from error

    def pin(self, cores: Collection[int]) -> None:
        """Keep all its threads on these cores; threads and children made later inherit it."""
        if not cores:
            return
        try:
            threads = [int(entry.name) for entry in (self._proc / str(self.pid) / "task").iterdir()]
        except OSError:
            return
        for thread in threads:
            try:
                os.sched_setaffinity(thread, cores)
            except ProcessLookupError:
                continue
            except OSError as error:
                raise OperatingError(f"pin session: pid {self.pid}: {error.strerror}; check Cores=") from error

    def close(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def _is_alive(pidfd: int) -> bool:
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
