"""Retention: old usage is rolled up to one interval per day, and still older rows are purged.

Each day or chunk is one transaction, so the work may stop at any time and continue later. A watermark is set before
anything is summed or deleted, so that replaying an old spool can neither restore deleted rows nor count them twice.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, delete, func, insert, select, tuple_, update

from accounting.storage.database import Database, chunks, insert_rows
from accounting.storage.tables import (
    ADMISSIONS,
    DEVICE_USAGE,
    EVENTS,
    INTERVAL_SPAN_MAX_NS,
    JOBS,
    LANE_SPANS,
    REASONS,
    RUNS,
    SESSIONS,
    SUSPENSIONS,
    USAGE,
    WATERMARKS,
)
from nodedaemon.core.types import DAY_NS

Progress = Callable[[int], None]
_MAXIMA = {"persistent_bytes_max", "ephemeral_bytes_max", "job_count_max", "capacity_bytes"}
# Rows that are purged by their own age, not only with a job run, and the time that decides it.
_BY_TIME = (
    (ADMISSIONS, ADMISSIONS.c.decided_utc_ns),
    (EVENTS, EVENTS.c.happened_utc_ns),
    (DEVICE_USAGE, DEVICE_USAGE.c.start_utc_ns),
)


def roll_up(database: Database, before_utc_ns: int, *, on_progress: Progress | None = None) -> tuple[int, int]:
    """Sum usage of whole UTC days before `before_utc_ns`, and delete their lane spans, which only charts use.

    Reports over whole days do not change. `on_progress` is called with 1 after each day. Returns the number of usage
    rows before and after the roll-up.
    """
    end_ns = before_utc_ns // DAY_NS * DAY_NS
    database.write(lambda connection: _raise_watermark(connection, "rolled_up", end_ns))
    before_count = after_count = 0
    for day in days_before(database, before_utc_ns):
        before, after = database.write(partial(_roll_up_day, day_ns=day * DAY_NS))
        before_count, after_count = before_count + before, after_count + after
        if on_progress:
            on_progress(1)
    return before_count, after_count


def days_before(database: Database, before_utc_ns: int) -> range:
    """The days that `roll_up` processes, numbered since the epoch."""
    with database.reading() as connection:
        firsts = [connection.scalar(select(func.min(table.c.start_utc_ns))) for table in (USAGE, DEVICE_USAGE)]
    first_ns = min((first for first in firsts if first is not None), default=before_utc_ns)
    return range(first_ns // DAY_NS, before_utc_ns // DAY_NS)


def purge(
    database: Database, before_utc_ns: int, *, is_dry: bool = False, on_progress: Progress | None = None
) -> dict[str, int]:
    """Delete job runs that ended before `before_utc_ns`, what refers to them, and older events and admissions.

    Profiles and their history stay, because admission needs them. `on_progress` is called with the number of runs done.
    Returns how many rows of each table were deleted or, with `is_dry`, would be.
    """
    is_old = (JOBS.c.until_utc_ns.is_not(None)) & (JOBS.c.until_utc_ns < before_utc_ns)
    counts = dict.fromkeys(("jobs", "usage", "sessions", "admissions", "events", "device_usage"), 0)
    with database.reading() as connection:
        job_ids = list(connection.execute(select(JOBS.c.id).where(is_old).order_by(JOBS.c.id)).scalars())
        if is_dry:
            return counts | _count(connection, job_ids, before_utc_ns)
    database.write(lambda connection: _raise_watermark(connection, "purged", before_utc_ns))
    for part in chunks(job_ids):
        for name, count in database.write(partial(_purge_jobs, job_ids=part)).items():
            counts[name] += count
        if on_progress:
            on_progress(len(part))
    for name, count in database.write(lambda connection: _purge_by_time(connection, before_utc_ns)).items():
        counts[name] += count
    return counts


def _roll_up_day(connection: Connection, day_ns: int) -> tuple[int, int]:
    counts = _sum_day(connection, USAGE, day_ns)
    _sum_day(connection, DEVICE_USAGE, day_ns)
    connection.execute(delete(LANE_SPANS).where(*_in_day(LANE_SPANS, day_ns)))
    return counts


def _in_day(table: Table, day_ns: int) -> tuple[ColumnElement[bool], ...]:
    return table.c.start_utc_ns >= day_ns, table.c.start_utc_ns < day_ns + DAY_NS


def _sum_day(connection: Connection, table: Table, day_ns: int) -> tuple[int, int]:
    """Replace the rows of one day with their sums; returns the numbers of rows before and after."""
    statement = select(table).where(*_in_day(table, day_ns)).with_for_update()
    rows = [tuple(row) for row in connection.execute(statement)]
    names, key_count = tuple(column.name for column in table.columns), len(table.primary_key.columns)
    merged = _merge(rows, names, key_count)
    if len(merged) < len(rows):
        # Delete by key, not by window: a row that another writer adds at this moment must not be lost.
        columns = [table.c[name] for name in names[:key_count]]
        for keys in chunks([row[:key_count] for row in rows]):
            connection.execute(delete(table).where(tuple_(*columns).in_(keys)))
        insert_rows(connection, table, names, merged)
    return len(rows), len(merged)


def _merge(rows: Iterable[tuple[Any, ...]], names: tuple[str, ...], key_count: int) -> list[tuple[Any, ...]]:
    """One row per key, disregarding the start time, which is the key's last part: sums, maxima, and weighted means."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row[: key_count - 1], []).append(dict(zip(names, row, strict=True)))
    merged: list[tuple[Any, ...]] = []
    for group in groups.values():
        start_ns = min(row["start_utc_ns"] for row in group)
        until_ns = max(row["start_utc_ns"] + row["span_ns"] for row in group)
        whole = dict(group[0])
        weight = max(1, sum(row["span_ns"] for row in group))
        for name in names[key_count:]:
            if name in _MAXIMA:
                whole[name] = max(row[name] for row in group)
            elif name.endswith("_mean"):
                whole[name] = sum(row[name] * row["span_ns"] for row in group) // weight
            else:
                whole[name] = sum(row[name] for row in group)
        whole["start_mono_ns"] = min(row["start_mono_ns"] for row in group)
        whole["start_utc_ns"] = start_ns
        # Reports look back only this far for intervals that cross the edge of a window.
        whole["span_ns"] = min(until_ns - start_ns, INTERVAL_SPAN_MAX_NS)
        merged.append(tuple(whole[name] for name in names))
    return merged


def _raise_watermark(connection: Connection, name: str, before_utc_ns: int) -> None:
    stored = connection.scalar(select(WATERMARKS.c.before_utc_ns).where(WATERMARKS.c.name == name))
    if stored is None:
        connection.execute(insert(WATERMARKS).values(name=name, before_utc_ns=before_utc_ns))
    elif stored < before_utc_ns:
        connection.execute(update(WATERMARKS).where(WATERMARKS.c.name == name).values(before_utc_ns=before_utc_ns))


def _purge_jobs(connection: Connection, job_ids: Sequence[int]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for table in (USAGE, LANE_SPANS, SESSIONS, SUSPENSIONS, RUNS, EVENTS):
        done = connection.execute(delete(table).where(table.c.job_id.in_(job_ids)))
        if table.name in ("usage", "sessions", "events"):
            counts[table.name] = done.rowcount
    counts["jobs"] = connection.execute(delete(JOBS).where(JOBS.c.id.in_(job_ids))).rowcount
    return counts


def _purge_by_time(connection: Connection, before_utc_ns: int) -> dict[str, int]:
    old = select(ADMISSIONS.c.id).where(ADMISSIONS.c.decided_utc_ns < before_utc_ns)
    connection.execute(delete(REASONS).where(REASONS.c.admission_id.in_(old)))
    return {
        table.name: connection.execute(delete(table).where(column < before_utc_ns)).rowcount
        for table, column in _BY_TIME
    }


def _count(connection: Connection, job_ids: list[int], before_utc_ns: int) -> dict[str, int]:
    counts = {"jobs": len(job_ids), "usage": 0, "sessions": 0}
    for part in chunks(job_ids):
        for table in (USAGE, SESSIONS):
            statement = select(func.count()).select_from(table).where(table.c.job_id.in_(part))
            counts[table.name] += connection.scalar(statement) or 0
    for table, column in _BY_TIME:
        statement = select(func.count()).select_from(table).where(column < before_utc_ns)
        counts[table.name] = connection.scalar(statement) or 0
    return counts
