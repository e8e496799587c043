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

from slurm_plugin.slurm import QueuedJob, SlurmError, job_target, read_release
from slurm_plugin.slurm.cli import ACTIVE_STATES, SlurmCommands

#: What is read of pyslurm's values; a test compares it with the interface of pyslurm's newest release.
JOB_ATTRIBUTES = (
    "id", "array_id", "array_task_id", "array_tasks_waiting", "state", "user_id", "user_name", "account", "qos",
    "partition", "name", "gres_per_node", "admin_comment", "state_reason", "allocated_nodes",
)  # fmt: skip
PARTITION_ATTRIBUTES = ("name", "is_default")


def open_pyslurm(directory: str, timeout_s: float) -> PyslurmSlurm:
    """The back end; SlurmError if pyslurm is not installed or does not match this cluster."""
    try:
        module = importlib.import_module("pyslurm")
    except ImportError as error:
        raise SlurmError(f"pyslurm: {error}; install salus[pyslurm] or set SlurmAccess=cli") from error
    slurm = PyslurmSlurm(module, directory, timeout_s)
    check_version(str(getattr(module, "__version__", "")), slurm.release())
    return slurm


def check_version(version: str, release: tuple[int, int]) -> None:
    """pyslurm's first two numbers are the release it was made for; 22.05 is written 22.5."""
    if read_release(version) != release:
        raise SlurmError(
            f"pyslurm: version {version or 'unknown'} is not made for Slurm {release[0]}.{release[1]:02d}; "
            "install the matching one or set SlurmAccess=cli"
        )


def tres_text(gres: object) -> str:
    """`{"gpu:a100": 2}` as Slurm writes it; pyslurm leaves the `gres/` of newer releases in the name."""
    if not isinstance(gres, Mapping):
        return ""
    return ",".join(f"gres:{str(name).removeprefix('gres/')}:{count}" for name, count in gres.items())


class PyslurmSlurm(SlurmCommands):
    def __init__(self, module: ModuleType, directory: str = "", timeout_s: float = 10.0) -> None:
        super().__init__(directory, timeout_s)
        self._pyslurm: Any = module

    def _load(self, what: str) -> list[Any]:
        try:
            return list(getattr(self._pyslurm, what).load().values())
        except self._pyslurm.PyslurmError as error:
            raise SlurmError(f"pyslurm: {what} not read: {error}; see slurmctld's log") from error

    def jobs(self) -> list[QueuedJob]:
        return [job for job in map(read_job, self._load("Jobs")) if job.state in ACTIVE_STATES]

    def default_partition(self) -> str:
        return next((str(partition.name) for partition in self._load("Partitions") if partition.is_default), "")


def read_job(job: Any) -> QueuedJob:
    waiting_tasks = job.array_tasks_waiting or ""
    return QueuedJob(
        id=int(job.id),
        target=job_target(job.id, job.array_id, job.array_task_id, waiting_tasks),
        state=str(job.state),
        uid=int(job.user_id),
        user=job.user_name or "",
        tres_per_node=tres_text(job.gres_per_node),
        reason=str(job.state_reason or ""),
        nodes=job.allocated_nodes or "",
        array_tasks=waiting_tasks,
        **{name: getattr(job, name) or "" for name in ("account", "qos", "partition", "name", "admin_comment")},
    )
