"""The interface of a device: one GPU, or a slice of this machine that stands for one.

A device creates lane memory as file descriptors, counts the bytes that are really held, and takes readings. It makes no
decisions and does not know sessions. It raises `OperatingError` for its own faults and `PeerError` for a bad descriptor
from a job. If `is_slow`, a call may block on hardware, so the service makes it in a thread. The service asks what a
device can do (`capabilities`), never of which kind it is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nodedaemon.core.types import DeviceId


@dataclass(frozen=True, slots=True)
class LaneMemory:
    """Memory of one lane as the daemon holds it; `identity` is unique within this boot."""

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
    """One sample of a device. A value that the device cannot measure is None, never 0. `faults` are new ones."""

    used_bytes: int
    total_bytes: int
    processes: tuple[ProcessReading, ...] = ()
    busy_permille: int | None = None
    temperature_celsius: int | None = None
    power_milliwatts: int | None = None
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a device can do beyond lanes and readings."""

    #: Jobs hold kernel launches back when their gate page says so.
    gates_launches: bool = False
    #: The driver can limit the device memory of a cgroup.
    limits_memory: bool = False
    #: NVIDIA's Multi-Process Service can run on it.
    runs_mps: bool = False
    #: A reading lists every process on the device, not only sessions.
    lists_processes: bool = False
    #: A lane's pages can be freed while a process still maps them.
    frees_mapped_lanes: bool = False
    #: It refuses a lane that is larger than its memory.
    bounds_lanes: bool = False


class DeviceDriver(Protocol):
    uuid: DeviceId
    index: int
    name: str
    model: str
    #: For people and records only.
    kind: str
    capabilities: Capabilities
    total_bytes: int
    usable_bytes: int
    granularity_bytes: int
    cores: tuple[int, ...]
    is_slow: bool
    #: Xids that are a job's own error: `XidIgnore` of the configuration in force.
    xids_ignored: frozenset[int]

    def open_lane(self, size_bytes: int) -> LaneMemory:
        """Create fresh, zeroed memory. Raises `OperatingError` if the device has no room."""

    def adopt_lane(self, fd: int, identity: str, size_bytes: int) -> LaneMemory:
        """After a restart, take back memory that a session kept. Owns `fd`; raises `PeerError` for other memory."""

    def wipe_lane(self, memory: LaneMemory) -> int:
        """Free the lane's pages, even if a process still maps them; returns the bytes that are held afterwards."""

    def held_bytes(self, memory: LaneMemory) -> int:
        """Bytes that the lane holds at this moment."""

    def is_mapped(self, memory: LaneMemory, pid: int) -> bool:
        """Whether the process maps the lane or keeps a descriptor of it."""

    def close_lane(self, memory: LaneMemory) -> None:
        """Close the daemon's own descriptor; idempotent."""

    def limit_group(self, cgroup: str, limit_bytes: int | None) -> bool:
        """Have the driver limit a cgroup's allocations; None lifts the limit. False if this driver has no limits."""

    def read(self, pids: Collection[int]) -> Reading:
        """Take a reading; a device that cannot list processes reports on `pids`, which are the sessions."""

    def job_environment(self, adaptor_dir: Path) -> dict[str, str]:
        """Variables that a job on this device needs, apart from those that every job needs."""

    def visible_as(self, name: str) -> dict[str, str]:
        """Variables that show a process this device only, by index or uuid."""

    def close(self) -> None: ...
