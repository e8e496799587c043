"""Slurm through pyslurm, if it is installed and matches the cluster's release: reads the queue without a process.

Changes still use scontrol, because pyslurm names a job by one number, which the waiting tasks of an array do not have.
Nodes are read with sinfo, because pyslurm 25.11 omits counts with a suffix (`shard:10K`). pyslurm is built for one
Slurm release and does not check it at run time, so this module compares the versions.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from slurm_plugin.slurm import JobChange, QueuedJob, SlurmError, SlurmNode
from slurm_plugin.slurm.cli import ACTIVE_STATES, SlurmCommands

#: What is read of pyslurm's values; a test compares it with the interface of pyslurm's newest release.
JOB_ATTRIBUTES = (
    "id", "array_id", "array_task_id", "array_tasks_waiting", "state", "user_id", "user_name", "account", "qos",
    "partition", "name", "gres_per_node", "admin_comment", "state_reason", "allocated_nodes",
)  # fmt: skip
PARTITION_ATTRIBUTES = ("name", "is_default")


def open_pyslurm(commands: SlurmCommands) -> PyslurmSlurm:
    """The back end; SlurmError if pyslurm is not installed or does not match this cluster."""
    try:
        module = importlib.import_module("pyslurm")
    except ImportError as error:
        raise SlurmError(f"pyslurm: {error}; install salus[pyslurm] or set SlurmAccess=cli") from error
    check_version(str(getattr(module, "__version__", "")), commands.release())
    return PyslurmSlurm(module, commands)


def check_version(version: str, release: tuple[int, int]) -> None:
    """pyslurm's first two numbers are the release it was made for; 22.05 is written 22.5."""
    parts = version.split(".")
    made_for = (int(parts[0]), int(parts[1])) if len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit() else None
    if made_for != release:
        raise SlurmError(
            f"pyslurm: version {version or 'unknown'} is not made for Slurm {release[0]}.{release[1]:02d}; "
            "install the matching one or set SlurmAccess=cli"
        )


def tres_text(gres: object) -> str:
    """`{"gpu:a100": 2}` as Slurm writes it; pyslurm leaves the `gres/` of newer releases in the name."""
    if not isinstance(gres, Mapping):
        return ""
    return ",".join(f"gres:{str(name).removeprefix('gres/')}:{count}" for name, count in gres.items())


class PyslurmSlurm:
    def __init__(self, module: ModuleType, commands: SlurmCommands) -> None:
        self._pyslurm: Any = module
        self._commands = commands

    def release(self) -> tuple[int, int]:
        return self._commands.release()

    def _load(self, what: str) -> list[Any]:
        try:
            return list(getattr(self._pyslurm, what).load().values())
        except self._pyslurm.PyslurmError as error:
            raise SlurmError(f"pyslurm: {what} not read: {error}; see slurmctld's log") from error

    def jobs(self) -> list[QueuedJob]:
        return [job for job in map(read_job, self._load("Jobs")) if job.state in ACTIVE_STATES]

    def nodes(self) -> list[SlurmNode]:
        return self._commands.nodes()

    def default_partition(self) -> str:
        return next((str(partition.name) for partition in self._load("Partitions") if partition.is_default), "")

    def update_job(self, target: str, change: JobChange) -> None:
        self._commands.update_job(target, change)

    def requeue_job(self, target: str) -> None:
        self._commands.requeue_job(target)


def read_job(job: Any) -> QueuedJob:
    target = str(job.id)
    if job.array_id and job.array_tasks_waiting:
        target = f"{job.array_id}_[{job.array_tasks_waiting}]"
    elif job.array_id and job.array_task_id is not None:
        target = f"{job.array_id}_{job.array_task_id}"
    return QueuedJob(
        id=int(job.id),
        target=target,
        state=str(job.state),
        uid=int(job.user_id),
        user=job.user_name or "",
        account=job.account or "",
        qos=job.qos or "",
        partition=job.partition or "",
        name=job.name or "",
        tres_per_node=tres_text(job.gres_per_node),
        admin_comment=job.admin_comment or "",
        reason=str(job.state_reason or ""),
        nodes=job.allocated_nodes or "",
        array_tasks=job.array_tasks_waiting or "",
    )
