"""Divides a window into bins: held, occupied and busy time, fairness, and memory over time.

Records are split at the edges of bins in whole nanoseconds, so the bins add up to what was recorded, and no bin has
more busy or occupied time than its devices had. Overlapping records of one device are merged first, and their sum is
spread evenly over the time that they cover together. Jobs that start or end within an interval have records of
different lengths. Spread one by one, these could exceed the device's time near the end of the interval. There is one
exception: if the wall clock was set back, the work before and after the step falls into the same bin.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from accounting.reports import queries
from accounting.reports.measures import Measures
from accounting.reports.selection import Selection
from accounting.reports.values import Bin, MemoryBin
from accounting.storage.database import greatest, least
from accounting.storage.tables import DEVICE_USAGE, DEVICES, JOBS, NODES, SUSPENSIONS, USAGE

BINS_MAX = 240
# Rows fetched at a time: a month of a large cluster has a million.
FETCH_COUNT = 10_000


class BusyStretch(NamedTuple):
    """Overlapping records of one device, merged: [start, until)."""

    start_ns: int
    until_ns: int
    busy_ns: int
    occupied_ns: int


class BinGrid(NamedTuple):
    """A window [start, until) divided into bins of equal width, the last of which may be narrower."""

    start_ns: int
    until_ns: int
    bin_ns: int

    @property
    def bin_count(self) -> int:
        return -(-(self.until_ns - self.start_ns) // self.bin_ns)

    def span_of(self, number: int) -> int:
        """The width of a bin."""
        return min(self.bin_ns, self.until_ns - self.start_ns - number * self.bin_ns)

    def parts(self, start_ns: int, until_ns: int, amount: int) -> Iterator[tuple[int, int]]:
        """Spread `amount` evenly over [start, until). Yields the number and the part of each bin inside the window.

        The parts add up to `amount` if [start, until) is inside the window. No part exceeds the bin's time unless
        `amount` exceeds the whole time, because a difference of floors is at most the ceiling of the difference.
        """
        whole_ns = until_ns - start_ns
        at_ns, end_ns = max(start_ns, self.start_ns), min(until_ns, self.until_ns)
        before = amount * (at_ns - start_ns) // whole_ns
        while at_ns < end_ns:
            number = (at_ns - self.start_ns) // self.bin_ns
            at_ns = min(end_ns, self.start_ns + (number + 1) * self.bin_ns)
            reached = amount * (at_ns - start_ns) // whole_ns
            yield number, reached - before
            before = reached


def merged_stretches(rows: Iterable[tuple[int, int, int, int, int]]) -> Iterator[BusyStretch]:
    """Merge rows of (device, start, until, busy, occupied), ordered by device and start, where they overlap."""
    last_device, last = None, BusyStretch(0, 0, 0, 0)
    for device, start_ns, until_ns, busy_ns, occupied_ns in rows:
        if device == last_device and start_ns < last.until_ns:
            last = BusyStretch(
                last.start_ns, max(last.until_ns, until_ns), last.busy_ns + busy_ns, last.occupied_ns + occupied_ns
            )
            continue
        if last.until_ns > last.start_ns:
            yield last
        last_device, last = device, BusyStretch(start_ns, until_ns, busy_ns, occupied_ns)
    if last.until_ns > last.start_ns:
        yield last


def grid_of(connection: sa.Connection, selection: Selection) -> BinGrid:
    """At most BINS_MAX bins, none narrower than the longest interval in the window: those would show no more detail."""
    width_ns = selection.end_utc_ns - selection.start_utc_ns
    longest_ns = max(
        int(
            connection.execute(
                sa.select(sa.func.max(table.c.span_ns)).where(*queries.overlaps(table, selection))
            ).scalar()
            or 1
        )
        for table in (USAGE, DEVICE_USAGE)
    )
    return BinGrid(
        selection.start_utc_ns, selection.end_utc_ns, max(1, -(-width_ns // BINS_MAX), min(longest_ns, width_ns))
    )


def bins_of(connection: sa.Connection, selection: Selection, grid: BinGrid, now_utc_ns: int) -> list[Bin]:
    """Every bin of the window, empty ones included."""
    busy_ns: dict[int, int] = defaultdict(int)
    occupied_ns: dict[int, int] = defaultdict(int)
    for stretch in merged_stretches(_usage_rows(connection, selection)):
        for amount, sums in ((stretch.busy_ns, busy_ns), (stretch.occupied_ns, occupied_ns)):
            for number, part in grid.parts(stretch.start_ns, stretch.until_ns, amount):
                sums[number] += part
    shares = _shares(connection, selection, grid)
    held_ns = _held(connection, selection, grid, now_utc_ns)
    return [
        Bin(
            start_utc_ns=grid.start_ns + number * grid.bin_ns,
            span_ns=grid.span_of(number),
            held_ns=held_ns.get(number, 0),
            measures=msgspec.structs.replace(
                shares.get(number, Measures()), busy_ns=busy_ns[number], occupied_ns=occupied_ns[number]
            ),
        )
        for number in range(grid.bin_count)
    ]


def _of_jobs(statement: sa.Select[Any], selection: Selection) -> sa.Select[Any]:
    joined = statement.join(JOBS, JOBS.c.id == USAGE.c.job_id).where(*queries.job_conditions(selection))
    if not selection.nodes:
        return joined
    return (
        joined.join(DEVICES, DEVICES.c.id == USAGE.c.device_id)
        .join(NODES, NODES.c.id == DEVICES.c.node_id)
        .where(NODES.c.name.in_(selection.nodes))
    )


def _usage_rows(connection: sa.Connection, selection: Selection) -> Iterator[tuple[int, int, int, int, int]]:
    device, start, span = USAGE.c.device_id, USAGE.c.start_utc_ns, USAGE.c.span_ns
    # PostgreSQL and MariaDB return sums as decimals.
    sums = (sa.cast(sa.func.sum(USAGE.c[name]), sa.BigInteger) for name in ("busy_ns", "occupied_ns"))
    statement = _of_jobs(sa.select(device, start, (start + span).label("until"), *sums), selection)
    ordered = statement.where(*queries.overlaps(USAGE, selection)).group_by(device, start, span).order_by(device, start)
    yield from connection.execute(ordered.execution_options(yield_per=FETCH_COUNT))


def _pieces(
    dialect: str, table: sa.Table, selection: Selection, grid: BinGrid
) -> list[tuple[sa.ColumnElement[int], sa.ColumnElement[int], list[sa.ColumnElement[bool]]]]:
    """For a row's first and second bin: its number, the length inside it, and the conditions. No row spans a third."""
    start, until = table.c.start_utc_ns, table.c.start_utc_ns + table.c.span_ns
    begin = greatest(dialect, start, queries.number(grid.start_ns))
    end = least(dialect, until, queries.number(grid.until_ns))
    first = (begin - queries.number(grid.start_ns)) // queries.number(grid.bin_ns)
    edge = queries.number(grid.start_ns) + (first + 1) * queries.number(grid.bin_ns)
    conditions = queries.overlaps(table, selection)
    return [
        (first, least(dialect, end, edge) - begin, conditions),
        (first + 1, end - edge, [*conditions, end > edge]),
    ]


def _shares(connection: sa.Connection, selection: Selection, grid: BinGrid) -> dict[int, Measures]:
    """Achieved over entitled in each bin, with one term per job and device."""
    pieces = []
    for number, inside, conditions in _pieces(connection.dialect.name, USAGE, selection, grid):
        part = sa.cast(inside, sa.Double()) / USAGE.c.span_ns
        columns = [(USAGE.c[name] * part).label(name) for name in ("busy_ns", "entitled_ns")]
        names = (number.label("place"), USAGE.c.job_id, USAGE.c.device_id, *columns)
        pieces.append(_of_jobs(sa.select(*names), selection).where(*conditions))
    found = sa.union_all(*pieces).subquery("pieces")
    share = (sa.func.sum(found.c.busy_ns) / sa.func.nullif(sa.func.sum(found.c.entitled_ns), 0)).label("share")
    jobs = (
        sa.select(found.c.place, share).group_by(found.c.place, found.c.job_id, found.c.device_id).subquery("jobs_of")
    )
    statement = sa.select(
        jobs.c.place, sa.func.sum(jobs.c.share), sa.func.sum(jobs.c.share * jobs.c.share), sa.func.count(jobs.c.share)
    ).group_by(jobs.c.place)
    return {
        int(place): Measures(share_sum=float(total or 0), share_square_sum=float(squares or 0), share_count=int(count))
        for place, total, squares, count in connection.execute(statement)
    }


def _held(connection: sa.Connection, selection: Selection, grid: BinGrid, now_utc_ns: int) -> dict[int, int]:
    """Held time of each bin. Jobs are grouped by their first and last bin, so a million jobs make few groups."""
    dialect = connection.dialect.name
    start_ns, end_ns = grid.start_ns, min(grid.until_ns, now_utc_ns)
    begin_number, end_number, width = map(queries.number, (start_ns, end_ns, grid.bin_ns))
    until = sa.func.coalesce(JOBS.c.until_utc_ns, end_number)
    first = greatest(dialect, JOBS.c.start_utc_ns, begin_number) - begin_number
    last = least(dialect, until, end_number) - begin_number
    first_bin, last_bin = (first // width).label("first_bin"), (last // width).label("last_bin")
    statement = (
        sa.select(
            first_bin,
            last_bin,
            sa.func.sum(JOBS.c.device_count).label("count"),
            sa.func.sum(JOBS.c.device_count * (first % width)).label("first_ns"),
            sa.func.sum(JOBS.c.device_count * (last % width)).label("last_ns"),
        )
        .where(JOBS.c.start_utc_ns < end_ns, until > start_ns, *queries.job_conditions(selection))
        .group_by(first_bin, last_bin)
    )
    held_ns: dict[int, int] = defaultdict(int)
    for row in connection.execute(statement).mappings():
        begin, end, count = int(row["first_bin"]), int(row["last_bin"]), int(row["count"])
        held_ns[begin] -= int(row["first_ns"])
        held_ns[end] += int(row["last_ns"])
        for number in range(begin, end):
            held_ns[number] += count * grid.bin_ns
    _subtract_suspended(connection, selection, BinGrid(start_ns, end_ns, grid.bin_ns), held_ns)
    return held_ns


def _subtract_suspended(
    connection: sa.Connection, selection: Selection, grid: BinGrid, held_ns: dict[int, int]
) -> None:
    start, span = SUSPENSIONS.c.start_utc_ns, SUSPENSIONS.c.span_ns
    statement = (
        sa.select(start, span, JOBS.c.device_count)
        .join(JOBS, JOBS.c.id == SUSPENSIONS.c.job_id)
        .where(start < grid.until_ns, start + span > grid.start_ns, *queries.job_conditions(selection))
    )
    for from_ns, span_ns, count in connection.execute(statement):
        for number, part_ns in grid.parts(from_ns, from_ns + span_ns, span_ns):
            held_ns[number] -= count * part_ns
    # If only the total is known (from sacct), it is spread evenly over the job, as `queries.held` does.
    job_start, job_until = JOBS.c.start_utc_ns, sa.func.coalesce(JOBS.c.until_utc_ns, queries.number(grid.until_ns))
    totals = (
        sa.select(job_start, job_until, JOBS.c.suspended_ns, JOBS.c.device_count)
        .where(JOBS.c.suspended_ns > 0, ~sa.exists().where(SUSPENSIONS.c.job_id == JOBS.c.id))
        .where(job_start < grid.until_ns, job_until > grid.start_ns, *queries.job_conditions(selection))
    )
    for from_ns, until_ns, gone_ns, count in connection.execute(totals):
        for number, part_ns in grid.parts(from_ns, until_ns, min(gone_ns, until_ns - from_ns)):
            held_ns[number] -= count * part_ns


def memory_of(connection: sa.Connection, selection: Selection, grid: BinGrid) -> list[MemoryBin]:
    """Mean memory on each device per bin, weighted by time. Bins without records are omitted."""
    names = ("persistent_bytes_mean", "lane_bytes_mean", "capacity_bytes")
    pieces = []
    for number, inside, conditions in _pieces(connection.dialect.name, DEVICE_USAGE, selection, grid):
        # Double precision: a day in byte-nanoseconds does not fit into 64 bits.
        weight: sa.ColumnElement[float] = sa.cast(inside, sa.Double())
        columns = [(DEVICE_USAGE.c[name] * weight).label(name) for name in names]
        place = (number.label("place"), DEVICE_USAGE.c.device_id, weight.label("weight"))
        pieces.append(sa.select(*place, *columns).where(*conditions))
    found = sa.union_all(*pieces).subquery("pieces")
    whole = sa.func.nullif(sa.func.sum(found.c.weight), 0)
    statement = (
        sa.select(found.c.place, NODES.c.name, DEVICES.c.uuid, *(sa.func.sum(found.c[name]) / whole for name in names))
        .join(DEVICES, DEVICES.c.id == found.c.device_id)
        .join(NODES, NODES.c.id == DEVICES.c.node_id)
        .group_by(found.c.place, NODES.c.name, DEVICES.c.uuid)
        .order_by(NODES.c.name, DEVICES.c.uuid, found.c.place)
    )
    if selection.nodes:
        statement = statement.where(NODES.c.name.in_(selection.nodes))
    return [
        MemoryBin(
            start_utc_ns=grid.start_ns + int(number) * grid.bin_ns,
            span_ns=grid.span_of(int(number)),
            node=node,
            device=device,
            persistent_bytes=int(persistent or 0),
            ephemeral_bytes=int(lanes or 0),
            free_bytes=max(0, int(capacity or 0) - int(persistent or 0) - int(lanes or 0)),
        )
        for number, node, device, persistent, lanes, capacity in connection.execute(statement)
    ]
