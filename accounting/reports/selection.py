"""Which job runs a question is about. Light: a command line is read into these before anything slow is imported."""

import msgspec


class JobSelector(msgspec.Struct, frozen=True, kw_only=True):
    """One job as a user names it: 123, 123_4 (array task), 123+1 (het component), or a SLUID."""

    job_id: int | None = None
    array_task_id: int | None = None
    het_offset: int | None = None
    sluid: str = ""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which job runs, in which window. Empty tuples mean no restriction, `is_for_all` that everybody's are wanted."""

    start_utc_ns: int
    end_utc_ns: int
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    jobs: tuple[JobSelector, ...] = ()
    is_for_all: bool = False
