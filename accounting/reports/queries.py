"""The SQL of the reports: selects job runs, and sums their held time and usage by any grouping.

A window is half open, [start, end). A usage interval that crosses an edge counts in proportion to the part inside. That
part is computed row by row, but only for the few rows at the two edges; one pass sums up all others.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.sql.selectable import FromClause

from accounting.reports.measures import Measures
from accounting.reports.selection import JobSelector, Selection
from accounting.storage.database import greatest, least
from accounting.storage.tables import (
    CLUSTERS,
    DEVICES,
    INTERVAL_SPAN_MAX_NS,
    JOBS,
    NODES,
    PROFILES,
    SESSIONS,
    SUSPENSIONS,
    USAGE,
)
from accounting.viewer import Viewer
from nodedaemon.wire.envelope import NotPermittedError

# SQLite groups by sorting. One statement sums up as many job runs as SQLite can sort in memory.
PIECE_LENGTH = 1 << 15

Group = tuple[Any, ...]
Dimensions = Mapping[str, sa.ColumnElement[Any]]


class ReadPlan(msgspec.Struct, frozen=True):
    """How to read the rows of a window: the start column for conditions, and the conditions of each piece."""

    start: sa.ColumnElement[int]
    pieces: list[list[sa.ColumnElement[bool]]]


_SAME_NAMES = (
    "busy_ns occupied_ns running_ns outside_ns entitled_ns iteration_count handover_count peak_mib_ms held_mib_ms"
)
# Job runs with the name of their cluster.
JOB_RUNS = sa.select(JOBS, CLUSTERS.c.name.label("cluster")).join(CLUSTERS, CLUSTERS.c.id == JOBS.c.cluster_id)
# The measures that are sums of a column of USAGE, by their column.
SUMMED = {name: name for name in _SAME_NAMES.split()} | {"gate_wait_ns": "wait_ns"}


def restricted(selection: Selection, viewer: Viewer) -> Selection:
    """The selection limited to what `viewer` may see; NotPermittedError if it names other users."""
    if viewer.is_operator:
        return selection
    others = [user for user in selection.users if user != viewer.user]
    if others or selection.is_for_all:
        raise NotPermittedError(
            f"no report for {'user ' + ', '.join(others) if others else 'all users'}: {viewer.user} is not an operator "
            "and can see only their own jobs; leave out -u and -a"
        )
    return msgspec.structs.replace(selection, users=(viewer.user,))


def job_conditions(selection: Selection) -> list[sa.ColumnElement[bool]]:
    """The conditions of a selection on a row of JOBS, except for the window."""
    found: list[sa.ColumnElement[bool]] = []
    for column, names in (
        (JOBS.c.user, selection.users),
        (JOBS.c.account, selection.accounts),
        (JOBS.c.partition, selection.partitions),
    ):
        if names:
            found.append(column.in_(names))
    if selection.clusters:
        found.append(JOBS.c.cluster_id.in_(sa.select(CLUSTERS.c.id).where(CLUSTERS.c.name.in_(selection.clusters))))
    if selection.nodes:
        on_nodes = (
            sa.select(SESSIONS.c.job_id)
            .join(DEVICES, DEVICES.c.id == SESSIONS.c.device_id)
            .join(NODES, NODES.c.id == DEVICES.c.node_id)
            .where(NODES.c.name.in_(selection.nodes))
        )
        found.append(JOBS.c.id.in_(on_nodes))
    if selection.jobs:
        found.append(sa.or_(*(_is_job(job) for job in selection.jobs)))
    return found


def overlaps(table: sa.Table, selection: Selection) -> list[sa.ColumnElement[bool]]:
    """The conditions on a row of intervals that overlaps the window."""
    start = table.c.start_utc_ns
    # The first condition can use the index; a sum of columns cannot.
    return [
        start > selection.start_utc_ns - INTERVAL_SPAN_MAX_NS,
        start < selection.end_utc_ns,
        start + table.c.span_ns > selection.start_utc_ns,
    ]


def within(column: sa.ColumnElement[int], selection: Selection) -> sa.ColumnElement[bool]:
    """The condition that the time in `column` is in the window."""
    return (column >= selection.start_utc_ns) & (column < selection.end_utc_ns)


def held(
    connection: sa.Connection, selection: Selection, dimensions: Dimensions, now_utc_ns: int
) -> dict[Group, Measures]:
    """Held time, waits and counts of the job runs that overlap the window, by `dimensions`."""
    dialect = connection.dialect.name
    # A running job counts until now, even if the window ends later.
    end_ns = min(selection.end_utc_ns, now_utc_ns)
    until = sa.func.coalesce(JOBS.c.until_utc_ns, end_ns)
    begin = greatest(dialect, JOBS.c.start_utc_ns, number(selection.start_utc_ns))
    # A job that has just started on a node whose clock is ahead of ours has held nothing yet.
    inside = greatest(dialect, least(dialect, until, number(selection.end_utc_ns)) - begin, number(0))
    plan = read_plan(connection, JOBS, selection)
    conditions = [plan.start < selection.end_utc_ns, until > selection.start_utc_ns, *job_conditions(selection)]
    started = JOBS.c.start_utc_ns >= selection.start_utc_ns
    statement = (
        sa.select(
            *dimensions.values(),
            sa.func.count().label("job_count"),
            sa.func.sum(inside * JOBS.c.device_count).label("held_ns"),
            sa.func.sum(inside).label("elapsed_ns"),
            sa.func.sum(sa.case((started, JOBS.c.wait_ns))).label("queue_wait_ns"),
            sa.func.count(sa.case((started, JOBS.c.wait_ns))).label("queue_wait_count"),
        )
        .select_from(_with_cluster(JOBS) if _uses(dimensions, CLUSTERS) else JOBS)
        .where(*conditions)
        .group_by(*dimensions.values())
    )
    names = ("job_count", "held_ns", "elapsed_ns", "queue_wait_ns", "queue_wait_count")
    sums: dict[Group, Measures] = defaultdict(Measures)
    for piece in plan.pieces:
        for row in connection.execute(statement.where(*piece)):
            values = row._mapping
            sums[tuple(row[: len(dimensions)])] += Measures(**{name: int(values[name] or 0) for name in names})
    for group, correction in _suspended(connection, selection, dimensions, conditions, end_ns).items():
        sums[group] += correction
    return dict(sums)


def used(connection: sa.Connection, selection: Selection, dimensions: Dimensions) -> dict[Group, Measures]:
    """Usage in the window, summed by `dimensions`."""
    start_ns, end_ns = selection.start_utc_ns, selection.end_utc_ns
    plan = read_plan(connection, USAGE, selection)
    # Conditions on the column itself can use the index; a sum of columns cannot.
    is_whole = [plan.start >= start_ns, plan.start <= end_ns, USAGE.c.start_utc_ns + USAGE.c.span_ns <= end_ns]
    sums: dict[Group, Measures] = defaultdict(Measures)
    for piece in plan.pieces:
        for row in connection.execute(_usage_sums(selection, dimensions, [*is_whole, *piece])):
            sums[tuple(row[: len(dimensions)])] += _measures(row._mapping)
    for row in connection.execute(_usage_at_edges(selection, dimensions)):
        sums[tuple(row[: len(dimensions)])] += _part(row._mapping, start_ns, end_ns)
    return dict(sums)


def _usage_sums(
    selection: Selection, dimensions: Dimensions, window: Sequence[sa.ColumnElement[bool]]
) -> sa.Select[Any]:
    usage = (
        sa.select(
            USAGE.c.job_id,
            USAGE.c.device_id,
            sa.func.count().label("usage_count"),
            sa.func.sum(USAGE.c.present_ns - USAGE.c.suspended_ns).label("active_ns"),
            *(sa.func.sum(USAGE.c[column]).label(name) for name, column in SUMMED.items()),
        )
        .where(*window)
        .group_by(USAGE.c.job_id, USAGE.c.device_id)
        .subquery("u")
    )
    solo = PROFILES.c.solo_iteration_ns
    is_known = solo.is_not(None)
    share = sa.cast(usage.c.busy_ns, sa.Double()) / sa.func.nullif(usage.c.entitled_ns, 0)
    return (
        sa.select(
            *dimensions.values(),
            *(sa.func.sum(usage.c[name]).label(name) for name in (*SUMMED, "usage_count")),
            sa.func.sum(_iterations_alone(usage, solo) + usage.c.outside_ns).label("known_alone_ns"),
            sa.func.sum(sa.case((is_known, usage.c.occupied_ns))).label("known_occupied_ns"),
            sa.func.sum(sa.case((is_known, usage.c.active_ns))).label("known_present_ns"),
            sa.func.sum(sa.case((is_known, usage.c.usage_count))).label("known_count"),
            sa.func.sum(share).label("share_sum"),
            sa.func.sum(share * share).label("share_square_sum"),
            sa.func.count(share).label("share_count"),
        )
        .select_from(_with_profile(usage, dimensions, selection))
        .where(*job_conditions(selection), *_node_condition(selection))
        .group_by(*dimensions.values())
    )


def _iterations_alone(usage: FromClause, solo: sa.ColumnElement[int | None]) -> sa.ColumnElement[int | None]:
    """How long the iterations would have taken alone; NULL if the solo iteration time is unknown.

    Sharing makes no iteration faster, so this is at most the time for which they ran. Jobs report the number and the
    solo time of their iterations themselves. The division avoids a product that does not fit into 64 bits.
    """
    counts, running = usage.c.iteration_count, usage.c.running_ns
    return sa.case((solo == 0, number(0)), (counts <= running // solo, counts * solo), (solo > 0, running))


def _usage_at_edges(selection: Selection, dimensions: Dimensions) -> sa.Select[Any]:
    start, until = USAGE.c.start_utc_ns, USAGE.c.start_utc_ns + USAGE.c.span_ns
    crosses = [
        (start > edge - INTERVAL_SPAN_MAX_NS) & (start < edge) & (until > edge)
        for edge in (selection.start_utc_ns, selection.end_utc_ns)
    ]
    return (
        sa.select(*dimensions.values(), USAGE, PROFILES.c.solo_iteration_ns.label("solo_ns"))
        .select_from(_with_profile(USAGE, dimensions, selection))
        .where(sa.or_(*crosses), *job_conditions(selection), *_node_condition(selection))
    )


def _with_cluster(table: FromClause) -> FromClause:
    return table.join(CLUSTERS, CLUSTERS.c.id == JOBS.c.cluster_id)


def _with_profile(usage: FromClause, dimensions: Dimensions, selection: Selection) -> FromClause:
    joined: FromClause = usage.join(JOBS, JOBS.c.id == usage.c.job_id).join(DEVICES, DEVICES.c.id == usage.c.device_id)
    # Each join costs one lookup per row, so join only the tables that are needed.
    if _uses(dimensions, CLUSTERS):
        joined = _with_cluster(joined)
    if _uses(dimensions, NODES) or selection.nodes:
        joined = joined.join(NODES, NODES.c.id == DEVICES.c.node_id)
    return joined.outerjoin(
        PROFILES,
        (PROFILES.c.cluster_id == JOBS.c.cluster_id)
        & (PROFILES.c.user == JOBS.c.user)
        & (PROFILES.c.signature == JOBS.c.signature)
        & (PROFILES.c.device_model == DEVICES.c.model),
    )


def _uses(dimensions: Dimensions, table: sa.Table) -> bool:
    return any(getattr(column, "table", None) is table for column in dimensions.values())


def read_plan(connection: sa.Connection, table: sa.Table, selection: Selection) -> ReadPlan:
    """How to sum up the rows of JOBS or USAGE in the window at a cost proportional to their number.

    SQLite uses the index on the start time even if the window holds most rows. It then has to sort the rows again,
    which costs three times as much as a full table scan. Adding 0 to the column hides the index from SQLite. Because
    SQLite also sorts to group, a full scan is divided into pieces by job run.
    """
    start: sa.ColumnElement[int] = table.c.start_utc_ns
    if connection.dialect.name != "sqlite":
        return ReadPlan(start, [[]])
    first, last = _extremes(connection, start)
    if first is None or last is None:
        return ReadPlan(start, [[]])
    inside_ns = overlap_ns((first, last + 1), (selection.start_utc_ns, selection.end_utc_ns))
    if inside_ns * 3 <= last - first:
        return ReadPlan(start, [[]])
    run = JOBS.c.id if table is JOBS else table.c.job_id
    lowest, highest = _extremes(connection, run)
    begins = range(lowest, highest + 1, PIECE_LENGTH)
    return ReadPlan(start + 0, [[run >= begin, run < begin + PIECE_LENGTH] for begin in begins])


def _extremes(connection: sa.Connection, column: sa.ColumnElement[int]) -> tuple[Any, Any]:
    # Two statements: SQLite reads one end of the index for each. One statement for both would scan the whole index.
    return connection.scalar(sa.select(sa.func.min(column))), connection.scalar(sa.select(sa.func.max(column)))


def _node_condition(selection: Selection) -> list[sa.ColumnElement[bool]]:
    return [NODES.c.name.in_(selection.nodes)] if selection.nodes else []


def _suspended(
    connection: sa.Connection,
    selection: Selection,
    dimensions: Dimensions,
    conditions: Sequence[sa.ColumnElement[bool]],
    end_ns: int,
) -> dict[Group, Measures]:
    """Suspended time, to be subtracted from held time. Reads only jobs that were ever suspended."""
    jobs: dict[int, Mapping[Any, Any]] = {}
    groups: dict[int, Group] = {}
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    columns = (JOBS.c.id, JOBS.c.start_utc_ns, JOBS.c.until_utc_ns, JOBS.c.suspended_ns, JOBS.c.device_count)
    statement = (
        sa.select(*dimensions.values(), *columns, SUSPENSIONS.c.start_utc_ns.label("from_ns"), SUSPENSIONS.c.span_ns)
        .select_from(_with_cluster(JOBS).outerjoin(SUSPENSIONS, SUSPENSIONS.c.job_id == JOBS.c.id))
        .where(JOBS.c.suspended_ns > 0, *conditions)
    )
    for row in connection.execute(statement):
        values = row._mapping
        job_id = values[JOBS.c.id]
        jobs[job_id], groups[job_id] = values, tuple(row[: len(dimensions)])
        if values["from_ns"] is not None:
            spans[job_id].append((values["from_ns"], values["from_ns"] + values["span_ns"]))
    found: dict[Group, Measures] = defaultdict(Measures)
    for job_id, job in jobs.items():
        start_ns = job[JOBS.c.start_utc_ns]
        until_ns = end_ns if job[JOBS.c.until_utc_ns] is None else job[JOBS.c.until_utc_ns]
        window = (max(start_ns, selection.start_utc_ns), min(until_ns, selection.end_utc_ns))
        window_ns = max(0, window[1] - window[0])
        if spans[job_id]:
            suspended_ns = sum(overlap_ns(span, window) for span in spans[job_id])
        else:
            # If only the total is known (from sacct), it is spread evenly over the job.
            suspended_ns = job[JOBS.c.suspended_ns] * window_ns // max(1, until_ns - start_ns)
        suspended_ns = min(suspended_ns, window_ns)
        count = job[JOBS.c.device_count]
        found[groups[job_id]] += Measures(
            held_ns=-suspended_ns * count, elapsed_ns=-suspended_ns, suspended_ns=suspended_ns
        )
    return found


def overlap_ns(span: tuple[int, int], window: tuple[int, int]) -> int:
    """The length of the part of `span` inside `window`."""
    return max(0, min(span[1], window[1]) - max(span[0], window[0]))


def _measures(row: Mapping[Any, Any]) -> Measures:
    known = ("known_alone_ns", "known_occupied_ns", "known_present_ns", "known_count")
    # PostgreSQL and MariaDB return sums as decimals, and an empty sum is NULL.
    whole = {name: int(row[name] or 0) for name in (*SUMMED, *known, "usage_count", "share_count")}
    return Measures(
        **whole, share_sum=float(row["share_sum"] or 0), share_square_sum=float(row["share_square_sum"] or 0)
    )


def _part(row: Mapping[Any, Any], start_ns: int, end_ns: int) -> Measures:
    span_ns = row[USAGE.c.span_ns]
    begin_ns = row[USAGE.c.start_utc_ns]
    inside_ns = overlap_ns((begin_ns, begin_ns + span_ns), (start_ns, end_ns))
    values = {name: row[USAGE.c[column]] * inside_ns // span_ns for name, column in SUMMED.items()}
    part = Measures(**values, usage_count=1)
    if row["solo_ns"] is None:
        return part
    active_ns = (row[USAGE.c.present_ns] - row[USAGE.c.suspended_ns]) * inside_ns // span_ns
    return msgspec.structs.replace(
        part,
        known_count=1,
        known_alone_ns=min(values["iteration_count"] * row["solo_ns"], values["running_ns"]) + values["outside_ns"],
        known_occupied_ns=values["occupied_ns"],
        known_present_ns=active_ns,
    )


def _is_job(job: JobSelector) -> sa.ColumnElement[bool]:
    if job.sluid:
        return JOBS.c.sluid == job.sluid
    if job.array_task_id is not None:
        return (JOBS.c.array_job_id == job.job_id) & (JOBS.c.array_task_id == job.array_task_id)
    if job.het_offset is not None:
        return (JOBS.c.het_job_id == job.job_id) & (JOBS.c.het_offset == job.het_offset)
    return sa.or_(JOBS.c.slurm_job_id == job.job_id, JOBS.c.array_job_id == job.job_id, JOBS.c.het_job_id == job.job_id)


def number(value: int) -> sa.ColumnElement[int]:
    """A 64-bit literal: PostgreSQL treats a small plain literal as 32-bit."""
    return sa.literal(value, sa.BigInteger)
