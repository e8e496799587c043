"""What the service asks of a device, whatever it is made of.

A device gives lane memory as file descriptors, counts what is really held, and takes readings. It decides nothing and
keeps no list of sessions. Foreign errors come out as `OperatingError` (the device) or `PeerError` (what a job handed
in). A call may block on hardware: the service makes it in a thread where `is_slow` says so.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from nodedaemon.core.types import DeviceId


@dataclass(frozen=True, slots=True)
class LaneMemory:
    """Memory of one lane as the daemon holds it; `identity` tells it from all other memory of this boot."""

    fd: int
    identity: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """Device memory that one process holds for itself, lanes not counted."""

    pid: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class Reading:
    """One sample of a device. What the device cannot tell is None, never 0. `faults` are those since the last one."""

    used_bytes: int
    total_bytes: int
    processes: tuple[ProcessReading, ...] = ()
    busy_permille: int | None = None
    temperature_celsius: int | None = None
    power_milliwatts: int | None = None
    faults: tuple[str, ...] = ()


class Device(Protocol):
    """One physical GPU, or a slice of this machine that stands for one."""

    uuid: DeviceId
    index: int
    name: str
    model: str
    kind: str
    total_bytes: int
    usable_bytes: int
    granularity_bytes: int
    cores: tuple[int, ...]
    is_slow: bool
    #: Xids that are a job's own error (`XidIgnore`); set by who reads the configuration.
    xids_ignored: frozenset[int]
    #: File of the driver's library where the device has one, else "".
    driver_path: str

    def open_lane(self, size_bytes: int) -> LaneMemory:
        """Create fresh, zeroed memory. Raises `OperatingError` where the device has no room."""

    def adopt_lane(self, fd: int, identity: str, size_bytes: int) -> LaneMemory:
        """Take back, after a restart, memory that a session kept; owns `fd`. Raises `PeerError` if it is another."""

    def wipe_lane(self, memory: LaneMemory) -> int:
        """Give the lane's pages back whoever maps them still; the answer is the bytes held afterwards."""

    def held_bytes(self, memory: LaneMemory) -> int:
        """Bytes that the lane's memory holds at this moment."""

    def is_mapped(self, memory: LaneMemory, pid: int) -> bool:
        """Whether the process maps the lane or keeps a descriptor of it; a process that is gone does not."""

    def close_lane(self, memory: LaneMemory) -> None:
        """Drop the daemon's own hold; idempotent."""

    def limit_group(self, cgroup: str, limit_bytes: int | None) -> bool:
        """Let the driver refuse a cgroup's allocations beyond a limit, None lifts it; False where it has no limits."""

    def read(self, pids: Collection[int]) -> Reading:
        """Take a reading; `pids` are the sessions, for devices that cannot list processes themselves."""

    def close(self) -> None: ...
