"""The interface of a device: one GPU, or a slice of this machine that stands for one.

A device creates lane memory as file descriptors, counts the bytes that lanes actually hold, and takes readings. It
makes no decisions and knows nothing about sessions. It raises `OperatingError` for its own faults and `PeerError` for a
bad descriptor from a job. If `is_slow`, `read` may block on hardware, so the service calls it in a thread. The service
asks what a device can do (`capabilities`), never what kind it is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from nodedaemon.core.types import DeviceId


class LaneMemory(NamedTuple):
    """The memory of one lane, as the daemon holds it. `identity` is unique within this boot."""

    fd: int
    identity: str
    size_bytes: int


class ProcessReading(NamedTuple):
    """Device memory that one process holds for itself, without lanes."""

    pid: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class Reading:
    """One sample of a device. A value that the device cannot measure is None, never 0. `faults` lists new faults."""

    used_bytes: int
    total_bytes: int
    processes: tuple[ProcessReading, ...] = ()
    busy_permille: int | None = None
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
    #: Every process that `find_holders` names is a holder, not only a suspect.
    names_holders: bool = False


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
    #: Xids that are a job's own error: `XidIgnore` of the current configuration.
    xids_ignored: frozenset[int]

    def open_lane(self, size_bytes: int) -> LaneMemory:
        """Create fresh, zeroed memory. Raises `OperatingError` if the device has no room."""

    def adopt_lane(self, fd: int, identity: str, size_bytes: int) -> LaneMemory:
        """After a restart, reuse memory that a session kept. Raises `PeerError` for others. The caller keeps `fd`."""

    def wipe_lane(self, memory: LaneMemory) -> int:
        """Free the lane's memory; returns the bytes that are still held. Call it again until it returns 0.

        Only a device with `frees_mapped_lanes` frees pages that a process still maps.
        """

    def held_bytes(self, memory: LaneMemory) -> int:
        """Bytes that the lane holds at this moment."""

    def share_lane(self, memory: LaneMemory) -> int:
        """A descriptor of the memory for one process. The caller sends and closes it."""

    def is_shared(self, memory: LaneMemory) -> bool | None:
        """Whether any process but the daemon has the memory; None if the device cannot tell."""

    def find_holders(self, memory: LaneMemory, pids: Collection[int] | None) -> set[int]:
        """The processes, of `pids` or of all, that map the lane or keep a descriptor of it. Call it in a thread."""

    def close_lane(self, memory: LaneMemory) -> None:
        """Close the daemon's own descriptor; idempotent."""

    def limit_group(self, cgroup: str, limit_bytes: int | None) -> bool:
        """Limit the device memory of a cgroup; None lifts the limit. False if the driver has no such limits."""

    def read(self, pids: Collection[int]) -> Reading:
        """Take a reading; a device that cannot list processes reports on `pids`, which are the sessions."""

    def job_environment(self, adaptor_dir: Path) -> dict[str, str]:
        """Variables that a job on this device needs, apart from those that every job needs."""

    def visible_as(self, name: str) -> dict[str, str]:
        """Variables that make only this device visible to a process, by index or uuid."""

    def close(self) -> None: ...
