"""A slice of this machine's memory and cores as a device: jobs are real, their lanes are sealed memfds.

A lane's memfd is sealed against shrinking, growing and further seals, so no session can make the access of another one
fault. Bytes held are read from the inode, and a release punches the pages out: the memory comes back even
if a descriptor survives somewhere, and a page that is touched again afterwards shows in `held_bytes`.
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

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_FALLOC_KEEP_SIZE = 1
_FALLOC_PUNCH_HOLE = 2
_NAMESPACE = uuid_module.UUID("6f0c8a1e-5d57-4f0b-9f6e-2f9d0a5a7c11")

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def device_uuid(node: str, name: str) -> DeviceId:
    """The same node and name give the same uuid, so records of a host device stay together over restarts."""
    return DeviceId(f"HOST-{uuid_module.uuid5(_NAMESPACE, f'{node}/{name}')}")


class HostDevice:
    """Implements `nodedaemon.drivers.device.DeviceDriver` on anonymous memory files."""

    kind = "host"
    model = "host"
    capabilities = Capabilities(frees_mapped_lanes=True)
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
                f"host device: {name}: cores {missing} are not ours (we have {sorted(here)}); fix Cores="
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
            raise OperatingError(f"open lane: {self.name}: {error.strerror}; check open files of salusd") from error
        try:
            os.ftruncate(fd, size_bytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
            memory = LaneMemory(fd, _identity(fd), size_bytes)
        except OSError as error:
            os.close(fd)
            raise OperatingError(f"open lane: {self.name}: {size_bytes} bytes: {error.strerror}") from error
        self._lanes[memory.identity] = memory
        return memory

    def adopt_lane(self, fd: int, identity: str, size_bytes: int) -> LaneMemory:
        known = self._lanes.get(identity)
        try:
            is_ours = _identity(fd) == identity and os.fstat(fd).st_size == size_bytes and _seals(fd) == SEALS
        except OSError as error:
            os.close(fd)
            raise PeerError(f"adopt lane: {self.name}: {identity}: {error.strerror}") from error
        if not is_ours or known is not None:
            os.close(fd)
        if not is_ours:
            raise PeerError(f"adopt lane: {self.name}: {identity}: the descriptor is not that lane's memory")
        if known is not None:
            return known
        memory = LaneMemory(fd, identity, size_bytes)
        self._lanes[identity] = memory
        return memory

    def wipe_lane(self, memory: LaneMemory) -> int:
        flags = _FALLOC_PUNCH_HOLE | _FALLOC_KEEP_SIZE
        if _libc.fallocate(memory.fd, flags, 0, memory.size_bytes) != 0:
            reason = os.strerror(ctypes.get_errno())
            raise OperatingError(f"release lane: {self.name}: {memory.identity}: {reason}")
        return self.held_bytes(memory)

    def held_bytes(self, memory: LaneMemory) -> int:
        return os.fstat(memory.fd).st_blocks * 512

    def is_mapped(self, memory: LaneMemory, pid: int) -> bool:
        return _maps(pid, memory.identity) or _keeps_descriptor(pid, memory.identity)

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


def anonymous_bytes(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Private memory of a process, without its lanes and shared files; None when it is gone.

    From statm: `status` says the same and takes four times as long, which an idle node with many sessions would notice.
    """
    try:
        with open(proc / str(pid) / "statm", "rb") as statm:  # noqa: PTH123  half the time of Path.read_text
            fields = statm.read().split()
    except OSError:
        return None
    resident, shared = int(fields[1]), int(fields[2])
    return max(0, resident - shared) * PAGE_BYTES


def default_memory_bytes() -> int:
    """Half of the memory that is free now, for a device that nobody sized."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return max(512 * MIB, int(line.split()[1]) * 1024 // 2)
    return 2048 * MIB


def _identity(fd: int) -> str:
    status = os.fstat(fd)
    return f"{status.st_dev}:{status.st_ino}"


def _seals(fd: int) -> int:
    return int(fcntl.fcntl(fd, fcntl.F_GET_SEALS))


def _maps(pid: int, identity: str) -> bool:
    inode = identity.partition(":")[2]
    try:
        with Path(f"/proc/{pid}/maps").open() as maps:
            return any(fields[4] == inode and "/memfd:" in line for line in maps if len(fields := line.split()) > 5)
    except OSError:
        return False


def _keeps_descriptor(pid: int, identity: str) -> bool:
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
    for descriptor in descriptors:
        try:
            status = descriptor.stat()
        except OSError:
            continue
        if f"{status.st_dev}:{status.st_ino}" == identity:
            return True
    return False
