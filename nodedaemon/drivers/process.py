"""A process of a job: identified by pid and start time, watched and signalled through a pidfd.

A pid alone does not identify a process, because pids are reused. A `Process` is created once, from the credentials of
the socket, and every later question is answered for that process or not at all.

A process is more than its main thread. When the main thread ends before the others, /proc/PID shows a zombie without
memory and without descriptors, while the others use both. So a process is gone when its pidfd reports that, and it is
stopped when every thread is. Its memory and descriptors are those of its threads.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Collection, Iterator
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from nodedaemon.core.errors import OperatingError, PeerError
from nodedaemon.drivers.procfs import PROC, read_bytes, read_lines, thread_directories
from nodedaemon.wire.trust import peer_credentials

_SO_PEERPIDFD = 77
_DEAD, _STOPPED = "ZX", "Tt"


ProcessState = StrEnum("ProcessState", "RUNNING STOPPED GONE")


class ProcessStat(NamedTuple):
    """The contents of /proc/PID/stat. `start_ticks`, counted since boot, never change while a process lives."""

    state: str
    parent_pid: int
    start_ticks: int


def read_stat(pid: int, proc: Path = PROC) -> ProcessStat | None:
    """None when the process is gone. The state is that of its main thread."""
    return _parse_stat(read_bytes(proc / str(pid) / "stat"))


def is_alive(pid: int, start_ticks: int, proc: Path = PROC) -> bool:
    """Whether a thread of this process lives. The pid alone is not enough: another process may have it by now."""
    stat = read_stat(pid, proc) if pid > 0 else None
    return stat is not None and stat.start_ticks == start_ticks and any(_live_states(pid, stat, proc))


def is_stopped(pid: int, proc: Path = PROC) -> bool | None:
    """Whether every thread of the process is stopped; None if none of them lives."""
    stat = read_stat(pid, proc)
    states = _live_states(pid, stat, proc) if stat is not None else iter(())
    first = next(states, None)
    return None if first is None else first in _STOPPED and all(state in _STOPPED for state in states)


def real_uid(pid: int, proc: Path = PROC) -> int | None:
    """The user who started the process; None when it is gone. The owner of its files in /proc may be root instead."""
    for line in read_lines(proc / str(pid) / "status"):
        if line.startswith(b"Uid:"):
            return int(line.split()[1])
    return None


def command_name(pid: int, proc: Path = PROC) -> bytes:
    """The first 15 bytes of the program's name, or what the process has chosen instead; b"" when it is gone.

    It comes from the kernel. The command line comes from the memory of the process, which can make its reader wait.
    """
    return (read_bytes(proc / str(pid) / "comm") or b"").removesuffix(b"\n")


def file_identity(status: os.stat_result) -> str:
    """A file's device and inode, unique within this boot."""
    return f"{status.st_dev}:{status.st_ino}"


def find_holders(identity: str, pids: Collection[int] | None = None) -> set[int]:
    """The processes, of `pids` or of all, that map a memfd or keep a descriptor of it. `identity`: `file_identity`.

    Call it in a thread: a process can have as many mappings and descriptors as it likes, and all are read.
    """
    if pids is None:
        pids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]
    return {pid for pid in pids if holds_file(pid, identity)}


def holds_file(pid: int, identity: str) -> bool:
    """Whether a process maps a memfd or keeps a descriptor of it. `identity` is from `file_identity`."""
    device, inode = map(int, identity.split(":"))
    threads = thread_directories(pid)
    # Threads share their memory, but each may have a table of descriptors of its own.
    maps = next((text for thread in threads if (text := read_bytes(thread / "maps"))), b"")
    if _maps_file(maps, device, inode):
        return True
    return any(_keeps_descriptor(thread, identity) for thread in threads)


class Process:
    """One process, for as long as its pidfd is held."""

    def __init__(self, pid: int, start_ticks: int, pidfd: int, proc: Path = PROC) -> None:
        self.pid = pid
        self.start_ticks = start_ticks
        self.pidfd = pidfd
        self._proc = proc

    @classmethod
    def of_peer(cls, connection: socket.socket) -> Process:
        """The process at the other end. Raises `PeerError` if it is gone already."""
        pid = peer_credentials(connection).pid
        try:
            pidfd = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
        except OSError:
            return cls.of_pid(pid)
        # The pidfd belongs to the process that connected, even if its pid has been reused since.
        stat = read_stat(pid)
        if stat is None or _is_gone(pidfd):
            os.close(pidfd)
            raise PeerError(f"identify peer: pid {pid}: it is gone")
        return cls(pid, stat.start_ticks, pidfd)

    @classmethod
    def of_pid(cls, pid: int, start_ticks: int | None = None, proc: Path = PROC) -> Process:
        """The process that has this pid now. With `start_ticks`, raises `PeerError` if it is another process."""
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
        if self.is_gone():
            return ProcessState.GONE
        return ProcessState.STOPPED if is_stopped(self.pid, self._proc) else ProcessState.RUNNING

    def is_gone(self) -> bool:
        """Whether every thread has ended: only then does the kernel make the pidfd readable."""
        return self.pidfd < 0 or _is_gone(self.pidfd)

    def end(self, signal_number: int = signal.SIGKILL) -> None:
        """Send a signal to exactly this process. It is not an error if the process is gone."""
        try:
            signal.pidfd_send_signal(self.pidfd, signal_number)
        except ProcessLookupError:
            return
        except PermissionError as error:
            raise OperatingError(f"signal session: pid {self.pid}: {error.strerror}; run salusd as root") from error

    def pin(self, cores: Collection[int]) -> None:
        """Pin all threads to these cores. Threads and children that start later inherit this."""
        if not cores:
            return
        for thread in thread_directories(self.pid, self._proc):
            try:
                os.sched_setaffinity(int(thread.name), cores)
            except ProcessLookupError:
                continue
            except OSError as error:
                raise OperatingError(f"pin session: pid {self.pid}: {error.strerror}; check Cores=") from error

    def close(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def _is_gone(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _parse_stat(text: bytes | None) -> ProcessStat | None:
    """The command name may contain any byte, spaces and parentheses too: the last parenthesis ends it."""
    fields = (text or b"").rpartition(b")")[2].split()
    return ProcessStat(fields[0].decode(), int(fields[1]), int(fields[19])) if len(fields) > 19 else None


def _live_states(pid: int, stat: ProcessStat, proc: Path) -> Iterator[str]:
    """The state of each thread that lives, the main thread's first. The others are read on demand."""
    if stat.state not in _DEAD:
        yield stat.state
    for thread in thread_directories(pid, proc):
        other = _parse_stat(read_bytes(thread / "stat")) if thread.name != str(pid) else None
        if other is not None and other.state not in _DEAD:
            yield other.state


def _maps_file(maps: bytes, device: int, inode: int) -> bool:
    """Whether the text of /proc/PID/maps shows the file. File names in it may look like the fields that we match."""
    wanted = [b"%02x:%02x" % (os.major(device), os.minor(device)), b"%d" % inode]
    if b" %b %b " % (wanted[0], wanted[1]) not in maps:
        return False
    return any(line.split(maxsplit=5)[3:5] == wanted for line in maps.split(b"\n"))


def _keeps_descriptor(thread: Path, identity: str) -> bool:
    try:
        names = os.listdir(thread / "fd")  # noqa: PTH208  a process may have a million
    except OSError:
        return False
    for name in names:
        path = f"{thread}/fd/{name}"
        try:
            # The kernel itself writes the link. A stat of a file that is no memfd could block on its file system.
            if os.readlink(path).startswith("/memfd:") and file_identity(os.stat(path)) == identity:  # noqa: PTH115, PTH116
                return True
        except OSError:
            continue
    return False
