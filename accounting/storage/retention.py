"""What becomes of old records: usage is rolled up to one interval a day, and what is older still is purged.

Each day or slice is one transaction, so that work may stop at any time and go on later. A watermark is set before
anything is summed or deleted: a spool replayed afterwards cannot bring back what is gone or count it twice.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, tuple_, update

from accounting.ingest.jobs import ADMISSIONS, JOBS, REASONS, SUSPENSIONS
from accounting.ingest.usage import DEVICE_USAGE, DEVICE_USAGE_NAMES, LANE_SPANS, SESSIONS, USAGE, USAGE_NAMES
from accounting.profiles import RUNS
from accounting.reports.queries import INTERVAL_SPAN_MAX_NS
from accounting.storage.catalog import CHUNK, table_of
from accounting.storage.database import Database, insert_rows
from accounting.storage.models import EventRow, WatermarkRow

EVENTS, WATERMARKS = table_of(EventRow), table_of(WatermarkRow)
DAY_NS = 86_400 * 1_000_000_000

Tell = Callable[[int], None]
_MAXIMA = {"persistent_bytes_max", "ephemeral_bytes_max"}
_KEYS = 4


@dataclass(frozen=True)
class RolledUp:
    """How many rows there were and how many are left in the days that were summed."""

    before_count: int
    after_count: int


@dataclass(frozen=True)
class Purged:
    """Rows deleted, or that would be, by table."""

    counts: dict[str, int]


def roll_up(database: Database, before_utc_ns: int, *, tell: Tell | None = None) -> RolledUp:
    """Sum usage of whole UTC days before `before_utc_ns`; lane spans of those days, which only charts use, go.

    `tell` is called with 1 for each day done. Reports over whole days keep every sum.
    """
    end_ns = before_utc_ns // DAY_NS * DAY_NS
    database.write(lambda connection: _raise_watermark(connection, "rolled_up", end_ns))
    with database.reading() as connection:
        first = connection.scalar(select(func.min(USAGE.c.start_utc_ns)))
        first_device = connection.scalar(select(func.min(DEVICE_USAGE.c.start_utc_ns)))
    starts = [value for value in (first, first_device) if value is not None]
    before_count = after_count = 0
    day_ns = min(starts) // DAY_NS * DAY_NS if starts else end_ns
    while day_ns < end_ns:
        before, after = database.write(partial(_roll_up_day, day_ns=day_ns))
        before_count, after_count = before_count + before, after_count + after
        day_ns += DAY_NS
        if tell:
            tell(1)
    return RolledUp(before_count, after_count)


def day_count(database: Database, before_utc_ns: int) -> int:
    """How many days `roll_up` will go through."""
    with database.reading() as connection:
        first = connection.scalar(select(func.min(USAGE.c.start_utc_ns)))
    return 0 if first is None else max(0, before_utc_ns // DAY_NS - first // DAY_NS)


def purge(database: Database, before_utc_ns: int, *, is_dry: bool = False, tell: Tell | None = None) -> Purged:
    """Delete job runs that ended before `before_utc_ns` with all that hangs on them, and older events and admissions.

    Profiles and their history stay: admission needs them. `tell` is called with the number of runs done.
    """
    is_old = (JOBS.c.until_utc_ns.is_not(None)) & (JOBS.c.until_utc_ns < before_utc_ns)
    counts: dict[str, int] = dict.fromkeys(("jobs", "usage", "sessions", "admissions", "events", "device_usage"), 0)
    with database.reading() as connection:
        numbers = list(connection.execute(select(JOBS.c.id).where(is_old).order_by(JOBS.c.id)).scalars())
        if is_dry:
            counts |= _count(connection, numbers, before_utc_ns)
            return Purged(counts)
    database.write(lambda connection: _raise_watermark(connection, "purged", before_utc_ns))
    for start in range(0, len(numbers), CHUNK):
        part = numbers[start : start + CHUNK]
        for name, count in database.write(partial(_purge_jobs, numbers=part)).items():
            counts[name] += count
        if tell:
            tell(len(part))
    for name, count in database.write(lambda connection: _purge_loose(connection, before_utc_ns)).items():
        counts[name] += count
    return Purged(counts)


def _roll_up_day(connection: Connection, day_ns: int) -> tuple[int, int]:
    window = (USAGE.c.start_utc_ns >= day_ns, USAGE.c.start_utc_ns < day_ns + DAY_NS)
    rows = [tuple(row) for row in connection.execute(select(USAGE).where(*window).with_for_update())]
    merged = _merge(rows, USAGE_NAMES, _KEYS, _MAXIMA)
    if len(merged) < len(rows):
        _replace(connection, USAGE, USAGE_NAMES, rows, merged, _KEYS)
    device_window = (DEVICE_USAGE.c.start_utc_ns >= day_ns, DEVICE_USAGE.c.start_utc_ns < day_ns + DAY_NS)
    device_rows = [
        tuple(row) for row in connection.execute(select(DEVICE_USAGE).where(*device_window).with_for_update())
    ]
    device_merged = _merge(device_rows, DEVICE_USAGE_NAMES, _KEYS - 1, {"job_count_max", "capacity_bytes"})
    if len(device_merged) < len(device_rows):
        _replace(connection, DEVICE_USAGE, DEVICE_USAGE_NAMES, device_rows, device_merged, _KEYS - 1)
    spans = (LANE_SPANS.c.start_utc_ns >= day_ns, LANE_SPANS.c.start_utc_ns < day_ns + DAY_NS)
    connection.execute(delete(LANE_SPANS).where(*spans))
    return len(rows), len(merged)


def _merge(
    rows: Iterable[tuple[Any, ...]], names: tuple[str, ...], key_count: int, maxima: set[str]
) -> list[tuple[Any, ...]]:
    """One row for each key without its time: sums, maxima, and means weighted by the span."""
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
            if name in maxima:
                whole[name] = max(row[name] for row in group)
            elif name.endswith("_mean"):
                whole[name] = sum(row[name] * row["span_ns"] for row in group) // weight
            else:
                whole[name] = sum(row[name] for row in group)
        whole["start_mono_ns"] = min(row["start_mono_ns"] for row in group)
        whole["start_utc_ns"] = start_ns
        # Reports search for intervals that cross an edge only so far back.
        whole["span_ns"] = min(until_ns - start_ns, INTERVAL_SPAN_MAX_NS)
        merged.append(tuple(whole[name] for name in names))
    return merged


def _replace(
    connection: Connection,
    table: Any,
    names: tuple[str, ...],
    rows: list[tuple[Any, ...]],
    merged: list[tuple[Any, ...]],
    key_count: int,
) -> None:
    # By key, not by window: a row that another writer adds at this moment must not vanish unsummed.
    columns = [table.c[name] for name in names[:key_count]]
    for start in range(0, len(rows), CHUNK):
        keys = [row[:key_count] for row in rows[start : start + CHUNK]]
        connection.execute(delete(table).where(tuple_(*columns).in_(keys)))
    insert_rows(connection, table, names, merged)


def _raise_watermark(connection: Connection, name: str, before_utc_ns: int) -> None:
    stored = connection.scalar(select(WATERMARKS.c.before_utc_ns).where(WATERMARKS.c.name == name))
    if stored is None:
        connection.execute(insert(WATERMARKS).values(name=name, before_utc_ns=before_utc_ns))
    elif stored < before_utc_ns:
        connection.execute(update(WATERMARKS).where(WATERMARKS.c.name == name).values(before_utc_ns=before_utc_ns))


def _purge_jobs(connection: Connection, numbers: list[int]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for table in (USAGE, LANE_SPANS, SESSIONS, SUSPENSIONS, RUNS, EVENTS):
        done = connection.execute(delete(table).where(table.c.job_id.in_(numbers)))
        if table.name in ("usage", "sessions", "events"):
            counts[table.name] = done.rowcount
    counts["jobs"] = connection.execute(delete(JOBS).where(JOBS.c.id.in_(numbers))).rowcount
    return counts


def _purge_loose(connection: Connection, before_utc_ns: int) -> dict[str, int]:
    old = select(ADMISSIONS.c.id).where(ADMISSIONS.c.decided_utc_ns < before_utc_ns)
    connection.execute(delete(REASONS).where(REASONS.c.admission_id.in_(old)))
    return {
        table.name: connection.execute(delete(table).where(column < before_utc_ns)).rowcount
        for table, column in (
            (ADMISSIONS, ADMISSIONS.c.decided_utc_ns),
            (EVENTS, EVENTS.c.happened_utc_ns),
            (DEVICE_USAGE, DEVICE_USAGE.c.start_utc_ns),
        )
    }


def _count(connection: Connection, numbers: list[int], before_utc_ns: int) -> dict[str, int]:
    counts = {"jobs": len(numbers), "usage": 0, "sessions": 0}
    for start in range(0, len(numbers), CHUNK):
        part = numbers[start : start + CHUNK]
        for table in (USAGE, SESSIONS):
            statement = select(func.count()).select_from(table).where(table.c.job_id.in_(part))
            counts[table.name] += connection.scalar(statement) or 0
    for table, column in (
        (ADMISSIONS, ADMISSIONS.c.decided_utc_ns),
        (EVENTS, EVENTS.c.happened_utc_ns),
        (DEVICE_USAGE, DEVICE_USAGE.c.start_utc_ns),
    ):
        statement = select(func.count()).select_from(table).where(column < before_utc_ns)
        counts[table.name] = connection.scalar(statement) or 0
    return counts
