"""A slice of this machine's memory and cores as a device. The jobs are real; their lanes are sealed memfds.

A lane's memfd is sealed against shrinking, growing and further seals, so no session can make another session's access
fault. The inode shows how many bytes a lane holds. A release punches a hole over all pages, so the memory is free even
if a descriptor survives somewhere. A page that is touched again afterwards counts in `held_bytes`.

Every descriptor that a session gets is a file opened for it, so the kernel counts it separately from the daemon's own.
It grants the daemon a write lease only if no other open file of the lane exists: no descriptor in any process, none in
transit in a socket, and no mapping. No other process can open the file, unless it runs as the daemon's own user.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import uuid as uuid_module
from collections.abc import Collection
from pathlib import Path

from nodedaemon.core.errors import OperatingError, PeerError
from nodedaemon.core.types import GRANULARITY_BYTES, MIB, DeviceId
from nodedaemon.drivers.device import Capabilities, LaneMemory, ProcessReading, Reading
from nodedaemon.drivers.process import file_identity, find_holders
from nodedaemon.drivers.procfs import PROC, read_bytes, read_lines, thread_directories

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_FALLOC_KEEP_SIZE = 1
_FALLOC_PUNCH_HOLE = 2
_NAMESPACE = uuid_module.UUID("6f0c8a1e-5d57-4f0b-9f6e-2f9d0a5a7c11")

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def device_uuid(node: str, name: str) -> DeviceId:
    """The uuid depends only on node and name, so a host device keeps its records across restarts."""
    return DeviceId(f"HOST-{uuid_module.uuid5(_NAMESPACE, f'{node}/{name}')}")


class HostDevice:
    """Implements `nodedaemon.drivers.device.DeviceDriver` on anonymous memory files."""

    kind = "host"
    model = "host"
    capabilities = Capabilities(frees_mapped_lanes=True, names_holders=True)
    is_slow = False
    xids_ignored: frozenset[int] = frozenset()
    granularity_bytes = GRANULARITY_BYTES

    def __init__(
        self, name: str, total_bytes: int, *, node: str, index: int = 0, cores: Collection[int] = (), uuid: str = ""
    ) -> None:
        if total_bytes < GRANULARITY_BYTES:
            raise OperatingError(f"host device: {name}: {total_bytes} bytes are less than one lane; raise Memory=")
        here = os.sched_getaffinity(0)
        missing = sorted(set(cores) - here)
        if missing:
            raise OperatingError(
                f"host device: {name}: salusd may not use cores {missing}, only {sorted(here)}; fix Cores="
            )
        self.name = name
        self.index = index
        self.uuid = DeviceId(uuid) if uuid else device_uuid(node, name)
        self.total_bytes = total_bytes
        self.usable_bytes = total_bytes // GRANULARITY_BYTES * GRANULARITY_BYTES
        self.cores = tuple(sorted(cores))
        self._lanes: dict[str, LaneMemory] = {}

    def open_lane(self, size_bytes: int) -> LaneMemory:
        try:
            fd = os.memfd_create(f"salus-lane-{self.index}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise OperatingError(f"open lane: {self.name}: {error.strerror}; raise LimitNOFILE of salusd") from error
        try:
            os.ftruncate(fd, size_bytes)
            os.fchmod(fd, 0o600)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
            memory = LaneMemory(_open_again(fd), _identity(fd), size_bytes)
        except OSError as error:
            raise OperatingError(f"open lane: {self.name}: {size_bytes} bytes: {error.strerror}") from error
        finally:
            os.close(fd)
        return self._lanes.setdefault(memory.identity, memory)

    def adopt_lane(self, fd: int, identity: str, size_bytes: int) -> LaneMemory:
        try:
            if _identity(fd) != identity or os.fstat(fd).st_size != size_bytes or _seals(fd) != SEALS:
                raise PeerError(f"adopt lane: {self.name}: {identity}: the descriptor is not that lane's memory")
            if identity not in self._lanes:
                self._lanes[identity] = LaneMemory(_open_again(fd), identity, size_bytes)
        except OSError as error:
            raise PeerError(f"adopt lane: {self.name}: {identity}: {error.strerror}") from error
        return self._lanes[identity]

    def share_lane(self, memory: LaneMemory) -> int:
        return _open_again(memory.fd)

    def is_shared(self, memory: LaneMemory) -> bool | None:
        try:
            fcntl.fcntl(memory.fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except BlockingIOError:
            return True
        except OSError:
            # A kernel without leases on memfds, or with leases switched off (fs.leases-enable).
            return None
        fcntl.fcntl(memory.fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return False

    def wipe_lane(self, memory: LaneMemory) -> int:
        flags = _FALLOC_PUNCH_HOLE | _FALLOC_KEEP_SIZE
        if _libc.fallocate(memory.fd, flags, 0, memory.size_bytes) != 0:
            reason = os.strerror(ctypes.get_errno())
            raise OperatingError(f"release lane: {self.name}: {memory.identity}: {reason}")
        return self.held_bytes(memory)

    def held_bytes(self, memory: LaneMemory) -> int:
        return os.fstat(memory.fd).st_blocks * 512

    def find_holders(self, memory: LaneMemory, pids: Collection[int] | None) -> set[int]:
        return find_holders(memory.identity, pids)

    def close_lane(self, memory: LaneMemory) -> None:
        if self._lanes.pop(memory.identity, None) is not None:
            os.close(memory.fd)

    def limit_group(self, cgroup: str, limit_bytes: int | None) -> bool:  # noqa: ARG002 - Slurm limits host memory
        return False

    def read(self, pids: Collection[int]) -> Reading:
        processes = tuple(ProcessReading(pid, held) for pid in pids if (held := anonymous_bytes(pid)) is not None)
        lanes = sum(self.held_bytes(memory) for memory in self._lanes.values())
        return Reading(
            used_bytes=lanes + sum(process.used_bytes for process in processes),
            total_bytes=self.total_bytes,
            processes=processes,
        )

    def job_environment(self, adaptor_dir: Path) -> dict[str, str]:  # noqa: ARG002 - needs no library
        return {"OMP_NUM_THREADS": str(len(self.cores))} if self.cores else {}

    def visible_as(self, name: str) -> dict[str, str]:  # noqa: ARG002 - every process sees the host
        return {}

    def close(self) -> None:
        for memory in list(self._lanes.values()):
            self.close_lane(memory)


def anonymous_bytes(pid: int, proc: Path = PROC) -> int | None:
    """Private memory of a process, without its lanes and shared files; None when it is gone.

    Read from statm: `status` takes four times as long, which would load an idle node with many sessions.
    """
    fields = (read_bytes(proc / str(pid) / "statm") or b"").split()
    if fields[1:2] == [b"0"]:
        # The main thread has ended. The other threads have the memory.
        others = (read_bytes(thread / "statm") for thread in thread_directories(pid, proc))
        fields = next((one.split() for one in others if one and one.split()[1] != b"0"), fields)
    if len(fields) < 3:
        return None
    resident, shared = int(fields[1]), int(fields[2])
    return max(0, resident - shared) * PAGE_BYTES


def default_memory_bytes() -> int:
    """Half of the memory that is available now, for a device without a configured size."""
    for line in read_lines(PROC / "meminfo"):
        if line.startswith(b"MemAvailable:"):
            return max(512 * MIB, int(line.split()[1]) * 1024 // 2)
    return 2048 * MIB


def _open_again(fd: int) -> int:
    return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)


def _identity(fd: int) -> str:
    return file_identity(os.fstat(fd))


def _seals(fd: int) -> int:
    return int(fcntl.fcntl(fd, fcntl.F_GET_SEALS))
