"""Which job runs a report covers. Commands parse their options into these before they import anything slow."""

from enum import StrEnum

import msgspec


class ReportKind(StrEnum):
    """What each line of a report stands for."""

    SUMMARY = "summary"
    CLUSTER = "cluster"
    ACCOUNT = "account"
    USER = "user"
    DEVICE = "device"
    JOB = "job"
    PROFILE = "profile"


class JobSelector(msgspec.Struct, frozen=True, kw_only=True):
    """One job as a user names it: 123, 123_4 (array task), 123+1 (het component), or a SLUID."""

    job_id: int | None = None
    array_task_id: int | None = None
    het_offset: int | None = None
    sluid: str = ""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Job runs within a window. An empty tuple means no restriction; `is_for_all` asks for the jobs of all users."""

    start_utc_ns: int
    end_utc_ns: int
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    jobs: tuple[JobSelector, ...] = ()
    is_for_all: bool = False
