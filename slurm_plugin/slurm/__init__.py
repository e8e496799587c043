"""The only way to Slurm: what we ask and tell it, with two back ends.

`cli` runs Slurm's commands and reads their output on all supported releases; `pyslurm` calls the library where it is
installed and matches the cluster. Callers see the values below and never a release. Calls block: a service runs them in
a thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nodedaemon.core.errors import OperatingError

#: From this release on Slurm keeps gres/gpu and the shards of a device apart; before, all its shards stand for it.
GPU_APART_RELEASE = (24, 11)


class SlurmError(OperatingError):
    """Slurm did not answer or refused; whoever runs it must act, or the job is gone."""


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job in Slurm's queue. `target` names it to `update_job`: of a pending array all its tasks that wait."""

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
    """A node with its generic resources, and the partitions that have it."""

    name: str
    state: str
    gres: str
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobChange:
    """What to change of a job; None leaves a field. Slurm checks who may."""

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
