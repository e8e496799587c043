"""Everything that calls Slurm or reads its files and formats; the rest of salus-admitd sees the types below.

`cli` runs Slurm's commands on all supported releases. `pyslurm` calls the library, if it is installed and matches the
cluster. Differences between releases stay in this package, except for GPU_APART_RELEASE. Calls block: a service makes
them in a thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

from nodedaemon.core.errors import OperatingError

#: Since this release, Slurm never gives a device to gres/gpu and to shards at once. In earlier releases, a job gets a
#: whole device by requesting all its shards.
GPU_APART_RELEASE = (24, 11)
#: The key of slurm.conf that says what slurmctld checks of a job.
ENFORCEMENT_KEY = "AccountingStorageEnforce"


class SlurmError(OperatingError):
    """Slurm did not answer, or it refused: its administrator must act, or the job no longer exists."""


def text_of(record: Mapping[str, object], name: str) -> str:
    """A text field of a record from Slurm; "" if it is absent or not a text."""
    value = record.get(name)
    return value if isinstance(value, str) else ""


@dataclass(frozen=True, kw_only=True)
class JobDescription:
    """The part of Slurm's job description that decides a job's charge, under Slurm's names."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    tres_per_node: str = ""
    admin_comment: str = ""

    @property
    def partitions(self) -> tuple[str, ...]:
        return tuple(filter(None, self.partition.split(",")))


def read_description(record: Mapping[str, object]) -> JobDescription:
    return JobDescription(**{field.name: text_of(record, field.name) for field in fields(JobDescription)})


@dataclass(frozen=True, kw_only=True)
class QueuedJob(JobDescription):
    """A job in Slurm's queue. `target` is its name for scontrol; for a pending array it means all waiting tasks."""

    id: int
    target: str
    state: str
    uid: int
    user: str = ""
    name: str = ""
    reason: str = ""
    nodes: str = ""
    array_tasks: str = ""


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node with its generic resources and its partitions."""

    name: str
    gres: str
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobChange:
    """A change to a job; fields that are None stay as they are."""

    gres: str | None = None
    admin_comment: str | None = None
    array_throttle: int | None = None
    is_begin_soon: bool = False


def read_enforcement(text: str) -> frozenset[str]:
    """What Slurm checks of a job, from the value of AccountingStorageEnforce: `associations`, `qos` and others.

    Without `associations`, Slurm accepts any account from any user; without `qos`, any QOS.
    """
    words = {word.strip().casefold() for word in text.split(",")}
    if "all" in words:
        words |= {"associations", "qos"}
    # Slurm checks associations with each of these, and accepts the numbers of old releases.
    if words & {"1", "2", "limits", "qos", "safe", "wckeys"}:
        words.add("associations")
    return frozenset(words - {"", "none"})


def read_release(text: str) -> tuple[int, int]:
    """Major and minor version: (22, 5) for `slurm-wlm 22.05.8`. (0, 0) if the text has none."""
    found = re.search(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def job_target(job_id: int, array_id: int, task_id: int | None, waiting_tasks: str) -> str:
    """The name of a job for scontrol: `7`, task `7_3`, or the waiting tasks `7_[4-12]` of an array."""
    if array_id and waiting_tasks:
        # In "4-12%1" the throttle is not part of the task list.
        return f"{array_id}_[{waiting_tasks.partition('%')[0]}]"
    return f"{array_id}_{task_id}" if array_id and task_id is not None else str(job_id)
