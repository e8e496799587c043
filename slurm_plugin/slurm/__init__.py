"""Everything that calls Slurm or reads its files and formats; the rest of salus-admitd sees the types below.

`cli` runs Slurm's commands on all supported releases. `pyslurm` calls the library, if it is installed and matches the
cluster. Callers never see a release. Calls block: a service makes them in a thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nodedaemon.core.errors import OperatingError

#: Since this release Slurm never gives a device to gres/gpu and shards at once. Before, all shards mean a whole device.
GPU_APART_RELEASE = (24, 11)


class SlurmError(OperatingError):
    """Slurm did not answer, or it refused: its administrator must act, or the job no longer exists."""


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job in Slurm's queue. `target` is its name for `update_job`; for a pending array it means all waiting tasks."""

    id: int
    target: str
    state: str
    uid: int
    user: str = ""
    account: str = ""
    qos: str = ""
    partition: str = ""
    name: str = ""
    tres_per_node: str = ""
    admin_comment: str = ""
    reason: str = ""
    nodes: str = ""
    array_tasks: str = ""


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node with its generic resources and its partitions."""

    name: str
    state: str
    gres: str
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobChange:
    """A change of a job; fields that are None stay."""

    gres: str | None = None
    admin_comment: str | None = None
    array_throttle: int | None = None
    is_begin_soon: bool = False


class SlurmClient(Protocol):
    def release(self) -> tuple[int, int]:
        """Major and minor version, as (22, 5)."""
        ...

    def jobs(self) -> list[QueuedJob]: ...

    def nodes(self) -> list[SlurmNode]: ...

    def default_partition(self) -> str: ...

    def update_job(self, target: str, change: JobChange) -> None: ...

    def requeue_job(self, target: str) -> None: ...
