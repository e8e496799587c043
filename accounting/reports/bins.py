"""A window cut into bins: held, occupied and busy time, fairness, and memory over time.

Time is cut where a bin ends, in whole nanoseconds: the bins sum to what was recorded, and no bin holds more busy or
occupied time than its devices had. Records of one device that overlap are cut as one, spread evenly over the time that
they cover together: jobs that come and go within an interval have records of different lengths, and each spread over
its own would put more than a device into its end. Only where a clock was set back do two hours share a bin.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Double,
    Select,
    Table,
    cast,
    exists,
    func,
    select,
    union_all,
)

from accounting.ingest.jobs import JOBS, SUSPENSIONS
from accounting.ingest.usage import DEVICE_USAGE, USAGE
from accounting.reports import queries
from accounting.reports.measures import Measures
from accounting.reports.selection import Selection
from accounting.storage.catalog import DEVICES, NODES
from accounting.storage.database import greatest, least

BINS_MAX = 240
# Rows that are fetched at a time: a month of a large cluster has a million.
FETCH_COUNT = 10_000


class Bin(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the time axis; the last one ends with the window."""

    start_utc_ns: int
    span_ns: int
    held_ns: int = 0
    measures: Measures = Measures()


class MemoryBin(msgspec.Struct, frozen=True, kw_only=True):
    """Mean bytes on one device during one step."""

    start_utc_ns: int
    span_ns: int
    node: str
    device: str
    persistent_bytes: int
    ephemeral_bytes: int
    foreign_bytes: int
    free_bytes: int


class Stretch(NamedTuple):
    """What records that overlap say together: [start, until) on one device."""

    start_ns: int
    until_ns: int
    busy_ns: int
    occupied_ns: int


class Cut(NamedTuple):
    """A window [start, until) in bins of one width, the last of which may be narrower."""

    start_ns: int
    until_ns: int
    bin_ns: int

    @property
    def bin_count(self) -> int:
        return -(-(self.until_ns - self.start_ns) // self.bin_ns)

    def span_of(self, number: int) -> int:
        """How wide a bin is."""
        return min(self.bin_ns, self.until_ns - self.start_ns - number * self.bin_ns)

    def parts(self, start_ns: int, until_ns: int, amount: int) -> Iterator[tuple[int, int]]:
        """Spread `amount` evenly over [start, until): each bin's number and part; what lies outside is left out.

        The parts sum to `amount` where all of it is inside, and none exceeds the time inside unless `amount` exceeds
        the whole time: a difference of floors is at most the ceiling of the difference.
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


def united(rows: Iterable[tuple[int, int, int, int, int]]) -> Iterator[Stretch]:
    """Rows of (device, start, until, busy, occupied), ordered by device and start, as stretches that do not overlap."""
    last_device, last = None, Stretch(0, 0, 0, 0)
    for device, start_ns, until_ns, busy_ns, occupied_ns in rows:
        if device == last_device and start_ns < last.until_ns:
            last = Stretch(
                last.start_ns, max(last.until_ns, until_ns), last.busy_ns + busy_ns, last.occupied_ns + occupied_ns
            )
            continue
        if last.until_ns > last.start_ns:
            yield last
        last_device, last = device, Stretch(start_ns, until_ns, busy_ns, occupied_ns)
    if last.until_ns > last.start_ns:
        yield last


def cut_of(connection: Connection, selection: Selection) -> Cut:
    """At most BINS_MAX bins, none narrower than the longest interval in the window: finer ones would show nothing."""
    width_ns = selection.end_utc_ns - selection.start_utc_ns
    longest_ns = max(
        int(connection.execute(select(func.max(table.c.span_ns)).where(*_overlaps(table, selection))).scalar() or 1)
        for table in (USAGE, DEVICE_USAGE)
    )
    return Cut(
        selection.start_utc_ns, selection.end_utc_ns, max(1, -(-width_ns // BINS_MAX), min(longest_ns, width_ns))
    )


def bins_of(connection: Connection, selection: Selection, cut: Cut, now_utc_ns: int) -> list[Bin]:
    """Every bin of the window, also those in which nothing was."""
    busy_ns: dict[int, int] = defaultdict(int)
    occupied_ns: dict[int, int] = defaultdict(int)
    for stretch in united(_usage_rows(connection, selection)):
        for amount, sums in ((stretch.busy_ns, busy_ns), (stretch.occupied_ns, occupied_ns)):
            for number, part in cut.parts(stretch.start_ns, stretch.until_ns, amount):
                sums[number] += part
    shares = _shares(connection, selection, cut)
    held_ns = _held(connection, selection, cut, now_utc_ns)
    return [
        Bin(
            start_utc_ns=cut.start_ns + number * cut.bin_ns,
            span_ns=cut.span_of(number),
            held_ns=held_ns.get(number, 0),
            measures=msgspec.structs.replace(
                shares.get(number, Measures()), busy_ns=busy_ns[number], occupied_ns=occupied_ns[number]
            ),
        )
        for number in range(cut.bin_count)
    ]


def _overlaps(table: Table, selection: Selection) -> list[ColumnElement[bool]]:
    start = table.c.start_utc_ns
    # The first bound is for the index: a sum of columns cannot be looked up in one.
    return [
        start > selection.start_utc_ns - queries.INTERVAL_SPAN_MAX_NS,
        start < selection.end_utc_ns,
        start + table.c.span_ns > selection.start_utc_ns,
    ]


def _of_jobs(statement: Select[Any], selection: Selection) -> Select[Any]:
    joined = statement.join(JOBS, JOBS.c.id == USAGE.c.job_id).where(*queries.job_conditions(selection))
    if not selection.nodes:
        return joined
    return (
        joined.join(DEVICES, DEVICES.c.id == USAGE.c.device_id)
        .join(NODES, NODES.c.id == DEVICES.c.node_id)
        .where(NODES.c.name.in_(selection.nodes))
    )


def _usage_rows(connection: Connection, selection: Selection) -> Iterator[tuple[int, int, int, int, int]]:
    device, start, span = USAGE.c.device_id, USAGE.c.start_utc_ns, USAGE.c.span_ns
    # Cast back: PostgreSQL and MariaDB sum into decimals.
    sums = (cast(func.sum(USAGE.c[name]), BigInteger) for name in ("busy_ns", "occupied_ns"))
    statement = _of_jobs(select(device, start, (start + span).label("until"), *sums), selection)
    ordered = statement.where(*_overlaps(USAGE, selection)).group_by(device, start, span).order_by(device, start)
    yield from connection.execute(ordered.execution_options(yield_per=FETCH_COUNT))


def _pieces(
    dialect: str, table: Table, selection: Selection, cut: Cut
) -> list[tuple[ColumnElement[int], ColumnElement[int], list[ColumnElement[bool]]]]:
    """Number, length inside and conditions of a row's first bin, and of its second: no row is wider than a bin."""
    start, until = table.c.start_utc_ns, table.c.start_utc_ns + table.c.span_ns
    begin = greatest(dialect, start, queries.number(cut.start_ns))
    end = least(dialect, until, queries.number(cut.until_ns))
    first = (begin - queries.number(cut.start_ns)) // queries.number(cut.bin_ns)
    edge = queries.number(cut.start_ns) + (first + 1) * queries.number(cut.bin_ns)
    here = _overlaps(table, selection)
    return [
        (first, least(dialect, end, edge) - begin, here),
        (first + 1, end - edge, [*here, end > edge]),
    ]


def _shares(connection: Connection, selection: Selection, cut: Cut) -> dict[int, Measures]:
    """Achieved over entitled in each bin, one term a job and device, whatever the number of its records."""
    pieces = []
    for number, inside, here in _pieces(connection.dialect.name, USAGE, selection, cut):
        part = cast(inside, Double()) / USAGE.c.span_ns
        columns = [(USAGE.c[name] * part).label(name) for name in ("busy_ns", "entitled_ns")]
        names = (number.label("place"), USAGE.c.job_id, USAGE.c.device_id, *columns)
        pieces.append(_of_jobs(select(*names), selection).where(*here))
    found = union_all(*pieces).subquery("pieces")
    share = (func.sum(found.c.busy_ns) / func.nullif(func.sum(found.c.entitled_ns), 0)).label("share")
    jobs = select(found.c.place, share).group_by(found.c.place, found.c.job_id, found.c.device_id).subquery("jobs_of")
    statement = select(
        jobs.c.place, func.sum(jobs.c.share), func.sum(jobs.c.share * jobs.c.share), func.count(jobs.c.share)
    ).group_by(jobs.c.place)
    return {
        int(place): Measures(share_sum=float(total or 0), share_square_sum=float(squares or 0), share_count=int(count))
        for place, total, squares, count in connection.execute(statement)
    }


def _held(connection: Connection, selection: Selection, cut: Cut, now_utc_ns: int) -> dict[int, int]:
    """Held time of each bin. Jobs are summed by their first and last bin, so a million of them are a few groups."""
    dialect = connection.dialect.name
    start_ns, end_ns = cut.start_ns, min(cut.until_ns, now_utc_ns)
    begin_number, end_number, width = map(queries.number, (start_ns, end_ns, cut.bin_ns))
    until = func.coalesce(JOBS.c.until_utc_ns, end_number)
    first = greatest(dialect, JOBS.c.start_utc_ns, begin_number) - begin_number
    last = least(dialect, until, end_number) - begin_number
    first_bin, last_bin = (first // width).label("first_bin"), (last // width).label("last_bin")
    statement = (
        select(
            first_bin,
            last_bin,
            func.sum(JOBS.c.device_count).label("count"),
            func.sum(JOBS.c.device_count * (first % width)).label("first_ns"),
            func.sum(JOBS.c.device_count * (last % width)).label("last_ns"),
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
            held_ns[number] += count * cut.bin_ns
    _take_suspended(connection, selection, Cut(start_ns, end_ns, cut.bin_ns), held_ns)
    return held_ns


def _take_suspended(connection: Connection, selection: Selection, cut: Cut, held_ns: dict[int, int]) -> None:
    start, span = SUSPENSIONS.c.start_utc_ns, SUSPENSIONS.c.span_ns
    statement = (
        select(start, span, JOBS.c.device_count)
        .join(JOBS, JOBS.c.id == SUSPENSIONS.c.job_id)
        .where(start < cut.until_ns, start + span > cut.start_ns, *queries.job_conditions(selection))
    )
    for from_ns, span_ns, count in connection.execute(statement):
        for number, part_ns in cut.parts(from_ns, from_ns + span_ns, span_ns):
            held_ns[number] -= count * part_ns
    # Only the total is known (from sacct): spread evenly over the job, as in the table.
    job_start, job_until = JOBS.c.start_utc_ns, func.coalesce(JOBS.c.until_utc_ns, queries.number(cut.until_ns))
    totals = (
        select(job_start, job_until, JOBS.c.suspended_ns, JOBS.c.device_count)
        .where(JOBS.c.suspended_ns > 0, ~exists().where(SUSPENSIONS.c.job_id == JOBS.c.id))
        .where(job_start < cut.until_ns, job_until > cut.start_ns, *queries.job_conditions(selection))
    )
    for from_ns, until_ns, gone_ns, count in connection.execute(totals):
        for number, part_ns in cut.parts(from_ns, until_ns, min(gone_ns, until_ns - from_ns)):
            held_ns[number] -= count * part_ns


def memory_of(connection: Connection, selection: Selection, cut: Cut) -> list[MemoryBin]:
    """Means over each bin of what the devices held, weighted by the time inside; a bin without records is left out."""
    names = ("persistent_bytes_mean", "lane_bytes_mean", "foreign_bytes_mean", "capacity_bytes")
    pieces = []
    for number, inside, here in _pieces(connection.dialect.name, DEVICE_USAGE, selection, cut):
        # As a double: byte-nanoseconds of a day do not fit 64 bits.
        weight: ColumnElement[float] = cast(inside, Double())
        columns = [(DEVICE_USAGE.c[name] * weight).label(name) for name in names]
        place = (number.label("place"), DEVICE_USAGE.c.device_id, weight.label("weight"))
        pieces.append(select(*place, *columns).where(*here))
    found = union_all(*pieces).subquery("pieces")
    whole = func.nullif(func.sum(found.c.weight), 0)
    statement = (
        select(found.c.place, NODES.c.name, DEVICES.c.uuid, *(func.sum(found.c[name]) / whole for name in names))
        .join(DEVICES, DEVICES.c.id == found.c.device_id)
        .join(NODES, NODES.c.id == DEVICES.c.node_id)
        .group_by(found.c.place, NODES.c.name, DEVICES.c.uuid)
        .order_by(NODES.c.name, DEVICES.c.uuid, found.c.place)
    )
    if selection.nodes:
        statement = statement.where(NODES.c.name.in_(selection.nodes))
    made: list[MemoryBin] = []
    for number, node, device, *means in connection.execute(statement):
        persistent, lanes, foreign, capacity = (int(value or 0) for value in means)
        made.append(
            MemoryBin(
                start_utc_ns=cut.start_ns + int(number) * cut.bin_ns,
                span_ns=cut.span_of(int(number)),
                node=node,
                device=device,
                persistent_bytes=persistent,
                ephemeral_bytes=lanes,
                foreign_bytes=foreign,
                free_bytes=max(0, capacity - persistent - lanes - foreign),
            )
        )
    return made
