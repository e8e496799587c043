"""The reports' SQL: which job runs a question is about, and sums of held time and usage over them by any grouping.

A window is half open, [start, end). An interval of usage that crosses its edge counts by the part inside; that is
worked out row by row, but only for the few rows at the two edges, so a report costs one pass over the rest.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Double,
    Select,
    Table,
    case,
    cast,
    func,
    literal,
    or_,
    select,
)
from sqlalchemy.sql.selectable import FromClause

from accounting.ingest.jobs import JOBS, SUSPENSIONS
from accounting.ingest.usage import SESSIONS, USAGE
from accounting.profiles import PROFILES
from accounting.reports.measures import Measures
from accounting.reports.selection import JobSelector, Selection
from accounting.storage.catalog import CLUSTERS, DEVICES, NODES
from accounting.storage.database import greatest, least
from accounting.viewer import DeniedError, Viewer

# No interval is longer, rolled-up ones included: what bounds the search for rows that cross an edge.
INTERVAL_SPAN_MAX_NS = 86_400 * 1_000_000_000
# Job runs that one statement sums up on SQLite, which groups by sorting: as many as it sorts in memory.
PIECE_LENGTH = 1 << 15

Group = tuple[Any, ...]
Dimensions = Mapping[str, ColumnElement[Any]]


class Reading(msgspec.Struct, frozen=True):
    """How to read the rows of a window: the start as a condition should name it, and conditions for one piece each."""

    start: ColumnElement[int]
    pieces: list[list[ColumnElement[bool]]]


SUMMED = {
    "busy_ns": "busy_ns",
    "occupied_ns": "occupied_ns",
    "running_ns": "running_ns",
    "gate_wait_ns": "wait_ns",
    "outside_ns": "outside_ns",
    "entitled_ns": "entitled_ns",
    "iteration_count": "iteration_count",
    "handover_count": "handover_count",
    "peak_mib_ms": "peak_mib_ms",
    "held_mib_ms": "held_mib_ms",
}


def restricted(selection: Selection, viewer: Viewer) -> Selection:
    """The selection as far as `viewer` may see it; DeniedError if it names others."""
    if viewer.is_operator:
        return selection
    others = [user for user in selection.users if user != viewer.user]
    if others or selection.is_for_all:
        raise DeniedError(
            f"report not made: {'user ' + ', '.join(others) if others else 'all users'}: {viewer.user} is no operator "
            "and sees the own jobs only; leave out -u and -a"
        )
    return msgspec.structs.replace(selection, users=(viewer.user,))


def job_conditions(selection: Selection) -> list[ColumnElement[bool]]:
    """What a row of jobs must fulfil, apart from the window."""
    found: list[ColumnElement[bool]] = []
    for column, names in (
        (JOBS.c.user, selection.users),
        (JOBS.c.account, selection.accounts),
        (JOBS.c.partition, selection.partitions),
    ):
        if names:
            found.append(column.in_(names))
    if selection.clusters:
        found.append(JOBS.c.cluster_id.in_(select(CLUSTERS.c.id).where(CLUSTERS.c.name.in_(selection.clusters))))
    if selection.nodes:
        there = (
            select(SESSIONS.c.job_id)
            .join(DEVICES, DEVICES.c.id == SESSIONS.c.device_id)
            .join(NODES, NODES.c.id == DEVICES.c.node_id)
            .where(NODES.c.name.in_(selection.nodes))
        )
        found.append(JOBS.c.id.in_(there))
    if selection.jobs:
        found.append(or_(*(_is_job(job) for job in selection.jobs)))
    return found


def held(
    connection: Connection, selection: Selection, dimensions: Dimensions, now_utc_ns: int
) -> dict[Group, Measures]:
    """Held time, waits and counts of the job runs that overlap the window, by `dimensions`."""
    dialect = connection.dialect.name
    # A running job lasts until now and no longer, even if the window goes on.
    end_ns = min(selection.end_utc_ns, now_utc_ns)
    until = func.coalesce(JOBS.c.until_utc_ns, end_ns)
    # A job that has just begun on a clock ahead of ours has held nothing yet.
    inside = greatest(
        dialect, least(dialect, until, number(selection.end_utc_ns)) - _begin(dialect, selection), number(0)
    )
    reading = reading_of(connection, JOBS, selection)
    here = [reading.start < selection.end_utc_ns, until > selection.start_utc_ns, *job_conditions(selection)]
    started = JOBS.c.start_utc_ns >= selection.start_utc_ns
    statement = (
        select(
            *dimensions.values(),
            func.count().label("job_count"),
            func.sum(inside * JOBS.c.device_count).label("held_ns"),
            func.sum(inside).label("elapsed_ns"),
            func.sum(case((started, JOBS.c.wait_ns))).label("queue_wait_ns"),
            func.count(case((started, JOBS.c.wait_ns))).label("queue_wait_count"),
        )
        .select_from(_with_cluster(JOBS) if _names(dimensions, CLUSTERS) else JOBS)
        .where(*here)
        .group_by(*dimensions.values())
    )
    names = ("job_count", "held_ns", "elapsed_ns", "queue_wait_ns", "queue_wait_count")
    sums: dict[Group, Measures] = defaultdict(Measures)
    for piece in reading.pieces:
        for row in connection.execute(statement.where(*piece)):
            values = row._mapping
            sums[tuple(row[: len(dimensions)])] += Measures(**{name: int(values[name] or 0) for name in names})
    for group, correction in _suspended(connection, selection, dimensions, here, end_ns).items():
        sums[group] += correction
    return dict(sums)


def used(connection: Connection, selection: Selection, dimensions: Dimensions) -> dict[Group, Measures]:
    """Sums of usage in the window, by `dimensions`."""
    start_ns, end_ns = selection.start_utc_ns, selection.end_utc_ns
    reading = reading_of(connection, USAGE, selection)
    # Bounds on the column itself as well: a sum of columns cannot be looked up in an index.
    is_whole = [reading.start >= start_ns, reading.start <= end_ns, USAGE.c.start_utc_ns + USAGE.c.span_ns <= end_ns]
    sums: dict[Group, Measures] = defaultdict(Measures)
    for piece in reading.pieces:
        for row in connection.execute(_usage_sums(selection, dimensions, [*is_whole, *piece])):
            sums[tuple(row[: len(dimensions)])] += _measures(row._mapping)
    for row in connection.execute(_usage_at_edges(selection, dimensions)):
        sums[tuple(row[: len(dimensions)])] += _part(row._mapping, start_ns, end_ns)
    return dict(sums)


def _usage_sums(selection: Selection, dimensions: Dimensions, window: Sequence[ColumnElement[bool]]) -> Select[Any]:
    usage = (
        select(
            USAGE.c.job_id,
            USAGE.c.device_id,
            func.count().label("usage_count"),
            func.sum(USAGE.c.present_ns - USAGE.c.suspended_ns).label("active_ns"),
            *(func.sum(USAGE.c[column]).label(name) for name, column in SUMMED.items()),
        )
        .where(*window)
        .group_by(USAGE.c.job_id, USAGE.c.device_id)
        .subquery("u")
    )
    solo = PROFILES.c.solo_iteration_ns
    is_known = solo.is_not(None)
    share = cast(usage.c.busy_ns, Double()) / func.nullif(usage.c.entitled_ns, 0)
    return (
        select(
            *dimensions.values(),
            *(func.sum(usage.c[name]).label(name) for name in (*SUMMED, "usage_count")),
            func.sum(usage.c.iteration_count * solo + case((is_known, usage.c.outside_ns))).label("known_alone_ns"),
            func.sum(case((is_known, usage.c.occupied_ns))).label("known_occupied_ns"),
            func.sum(case((is_known, usage.c.active_ns))).label("known_present_ns"),
            func.sum(case((is_known, usage.c.usage_count))).label("known_count"),
            func.sum(share).label("share_sum"),
            func.sum(share * share).label("share_square_sum"),
            func.count(share).label("share_count"),
        )
        .select_from(_with_profile(usage, dimensions, selection))
        .where(*job_conditions(selection), *_node_condition(selection))
        .group_by(*dimensions.values())
    )


def _usage_at_edges(selection: Selection, dimensions: Dimensions) -> Select[Any]:
    start, until = USAGE.c.start_utc_ns, USAGE.c.start_utc_ns + USAGE.c.span_ns
    crosses = [
        (start > edge - INTERVAL_SPAN_MAX_NS) & (start < edge) & (until > edge)
        for edge in (selection.start_utc_ns, selection.end_utc_ns)
    ]
    return (
        select(*dimensions.values(), USAGE, PROFILES.c.solo_iteration_ns.label("solo_ns"))
        .select_from(_with_profile(USAGE, dimensions, selection))
        .where(or_(*crosses), *job_conditions(selection), *_node_condition(selection))
    )


def _with_cluster(table: FromClause) -> FromClause:
    return table.join(CLUSTERS, CLUSTERS.c.id == JOBS.c.cluster_id)


def _with_profile(usage: FromClause, dimensions: Dimensions, selection: Selection) -> FromClause:
    joined: FromClause = usage.join(JOBS, JOBS.c.id == usage.c.job_id).join(DEVICES, DEVICES.c.id == usage.c.device_id)
    # Each further table is a look-up a row: only those that are asked for.
    if _names(dimensions, CLUSTERS):
        joined = _with_cluster(joined)
    if _names(dimensions, NODES) or selection.nodes:
        joined = joined.join(NODES, NODES.c.id == DEVICES.c.node_id)
    return joined.outerjoin(
        PROFILES,
        (PROFILES.c.cluster_id == JOBS.c.cluster_id)
        & (PROFILES.c.user == JOBS.c.user)
        & (PROFILES.c.signature == JOBS.c.signature)
        & (PROFILES.c.device_model == DEVICES.c.model),
    )


def _names(dimensions: Dimensions, table: Table) -> bool:
    return any(getattr(column, "table", None) is table for column in dimensions.values())


def reading_of(connection: Connection, table: Table, selection: Selection) -> Reading:
    """How to sum up the rows of JOBS or USAGE in the window at a cost that grows no faster than they do.

    SQLite takes the index on a time even where the window holds most rows, and then fetches them in an order that it
    has to sort again: three times the cost of reading the table through. A sum hides the index from it. And since it
    sorts to group, a table that is read through is read job run by job run, piece by piece.
    """
    start: ColumnElement[int] = table.c.start_utc_ns
    if connection.dialect.name != "sqlite":
        return Reading(start, [[]])
    first, last = _extremes(connection, start)
    if first is None or last is None:
        return Reading(start, [[]])
    inside_ns = overlap_ns((first, last + 1), (selection.start_utc_ns, selection.end_utc_ns))
    if inside_ns * 3 <= last - first:
        return Reading(start, [[]])
    run = JOBS.c.id if table is JOBS else table.c.job_id
    lowest, highest = _extremes(connection, run)
    begins = range(lowest, highest + 1, PIECE_LENGTH)
    return Reading(start + 0, [[run >= begin, run < begin + PIECE_LENGTH] for begin in begins])


def _extremes(connection: Connection, column: ColumnElement[int]) -> tuple[Any, Any]:
    # Two statements: SQLite takes an index's end for one, and reads all of it for both.
    return connection.scalar(select(func.min(column))), connection.scalar(select(func.max(column)))


def _node_condition(selection: Selection) -> list[ColumnElement[bool]]:
    return [NODES.c.name.in_(selection.nodes)] if selection.nodes else []


def _suspended(
    connection: Connection,
    selection: Selection,
    dimensions: Dimensions,
    here: Sequence[ColumnElement[bool]],
    end_ns: int,
) -> dict[Group, Measures]:
    """What suspended time takes away from held; only jobs that ever were suspended are looked at."""
    jobs: dict[int, Mapping[Any, Any]] = {}
    groups: dict[int, Group] = {}
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    columns = (JOBS.c.id, JOBS.c.start_utc_ns, JOBS.c.until_utc_ns, JOBS.c.suspended_ns, JOBS.c.device_count)
    statement = (
        select(*dimensions.values(), *columns, SUSPENSIONS.c.start_utc_ns.label("from_ns"), SUSPENSIONS.c.span_ns)
        .select_from(_with_cluster(JOBS).outerjoin(SUSPENSIONS, SUSPENSIONS.c.job_id == JOBS.c.id))
        .where(JOBS.c.suspended_ns > 0, *here)
    )
    for row in connection.execute(statement):
        values = row._mapping
        number = values[JOBS.c.id]
        jobs[number], groups[number] = values, tuple(row[: len(dimensions)])
        if values["from_ns"] is not None:
            spans[number].append((values["from_ns"], values["from_ns"] + values["span_ns"]))
    found: dict[Group, Measures] = defaultdict(Measures)
    for number, job in jobs.items():
        start_ns = job[JOBS.c.start_utc_ns]
        until_ns = end_ns if job[JOBS.c.until_utc_ns] is None else job[JOBS.c.until_utc_ns]
        window = (max(start_ns, selection.start_utc_ns), min(until_ns, selection.end_utc_ns))
        if spans[number]:
            gone_ns = sum(overlap_ns(span, window) for span in spans[number])
        else:
            # Only the total is known (from sacct): spread evenly over the job.
            gone_ns = job[JOBS.c.suspended_ns] * max(0, window[1] - window[0]) // max(1, until_ns - start_ns)
        gone_ns = min(gone_ns, max(0, window[1] - window[0]))
        count = job[JOBS.c.device_count]
        found[groups[number]] += Measures(held_ns=-gone_ns * count, elapsed_ns=-gone_ns, suspended_ns=gone_ns)
    return found


def overlap_ns(span: tuple[int, int], window: tuple[int, int]) -> int:
    """How much of `span` lies in `window`."""
    return max(0, min(span[1], window[1]) - max(span[0], window[0]))


def _measures(row: Mapping[Any, Any]) -> Measures:
    known = ("known_alone_ns", "known_occupied_ns", "known_present_ns", "known_count")
    # PostgreSQL and MariaDB sum into decimals, and an empty sum is NULL.
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
        known_alone_ns=values["iteration_count"] * row["solo_ns"] + values["outside_ns"],
        known_occupied_ns=values["occupied_ns"],
        known_present_ns=active_ns,
    )


def _is_job(job: JobSelector) -> ColumnElement[bool]:
    if job.sluid:
        return JOBS.c.sluid == job.sluid
    if job.array_task_id is not None:
        return (JOBS.c.array_job_id == job.job_id) & (JOBS.c.array_task_id == job.array_task_id)
    if job.het_offset is not None:
        return (JOBS.c.het_job_id == job.job_id) & (JOBS.c.het_offset == job.het_offset)
    return or_(JOBS.c.slurm_job_id == job.job_id, JOBS.c.array_job_id == job.job_id, JOBS.c.het_job_id == job.job_id)


def _begin(dialect: str, selection: Selection) -> ColumnElement[int]:
    return greatest(dialect, JOBS.c.start_utc_ns, number(selection.start_utc_ns))


def number(value: int) -> ColumnElement[int]:
    """A literal of 64 bits: PostgreSQL takes a small bare one for 32."""
    return literal(value, BigInteger)
