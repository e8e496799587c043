"""Read models of the HTML report's charts: the same window as a table, cut into bins or spans, capped in size.

A bin is never narrower than the longest interval of usage in the window, so that a row belongs to the bin in which it
starts without moving time by more than one bin. Held time is cut exactly. Others' jobs appear only as load.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec
from sqlalchemy import Connection, Double, case, cast, func, select

from accounting import queries
from accounting.database import Database, least
from accounting.jobs import ADMISSIONS, JOBS, REASONS, SUSPENSIONS
from accounting.measures import Measures
from accounting.models import EventRow
from accounting.places import DEVICES, NODES, Row, table_of
from accounting.profiles import ProfileChange, list_changes
from accounting.reports import job_name
from accounting.selection import Selection
from accounting.usage import DEVICE_USAGE, LANE_SPANS, USAGE
from accounting.viewer import Viewer

BINS_MAX = 240
SPANS_MAX = 4000
MARKS_MAX = 500
WAITS_MAX = 20

EVENTS = table_of(EventRow)


class Bin(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the time axis."""

    start_utc_ns: int
    held_ns: int = 0
    measures: Measures = Measures()


class MemoryBin(msgspec.Struct, frozen=True, kw_only=True):
    """Mean bytes on one device during one step."""

    start_utc_ns: int
    node: str
    device: str
    persistent_bytes: int
    ephemeral_bytes: int
    foreign_bytes: int
    free_bytes: int


class LaneSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A job's stay in a lane. `user` and `job` are empty where the viewer may not know them."""

    node: str
    device: str
    lane: int
    job: str
    user: str
    start_utc_ns: int
    end_utc_ns: int
    lane_bytes: int
    iteration_count: int


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """An event on the time axis of a device, or of the node where no device is named."""

    happened_utc_ns: int
    kind: str
    node: str
    device: str
    job: str
    detail: str


class LongWait(msgspec.Struct, frozen=True, kw_only=True):
    """One of the longest waits in the queue, with what its admission said."""

    job: str
    restart_count: int
    user: str
    account: str
    wait_ns: int
    start_utc_ns: int
    reasons: list[str]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """All charts of one report. `span_count` is how many stays there were, of which `spans` shows the longest."""

    bin_ns: int
    bins: list[Bin]
    memory: list[MemoryBin]
    spans: list[LaneSpan]
    span_count: int
    marks: list[Mark]
    waits: list[LongWait]
    changes: list[ProfileChange]


def make_figures(
    database: Database,
    viewer: Viewer,
    selection: Selection,
    *,
    now_utc_ns: int,
    on_step: Callable[[str], None] | None = None,
) -> Figures:
    """Everything that the charts of a report over `selection` show."""
    selection = queries.restricted(selection, viewer)
    tell = on_step or (lambda _step: None)
    with database.reading() as connection:
        selection = _narrowed(connection, selection, now_utc_ns)
        bin_ns = _bin_ns(connection, selection)
        tell("time line")
        bins = _bins(connection, selection, bin_ns, now_utc_ns)
        tell("memory")
        memory = _memory(connection, selection, bin_ns)
        tell("lanes")
        spans, span_count = _spans(connection, viewer, selection)
        marks = _marks(connection, viewer, selection)
        waits = _waits(connection, selection)
    tell("profiles")
    window = (selection.start_utc_ns, selection.end_utc_ns)
    changes = list_changes(database, viewer, users=selection.users, window=window, count_max=100)
    return Figures(
        bin_ns=bin_ns,
        bins=bins,
        memory=memory,
        spans=spans,
        span_count=span_count,
        marks=marks,
        waits=waits,
        changes=changes,
    )


def _narrowed(connection: Connection, selection: Selection, now_utc_ns: int) -> Selection:
    """The part of the window in which anything happened: a chart of an hour in a month would be a line."""
    first = select(func.min(JOBS.c.start_utc_ns), func.max(JOBS.c.until_utc_ns)).where(
        JOBS.c.start_utc_ns < selection.end_utc_ns,
        func.coalesce(JOBS.c.until_utc_ns, now_utc_ns) > selection.start_utc_ns,
        *queries.job_conditions(selection),
    )
    edges = connection.execute(first).one()
    usage_end = connection.execute(
        select(func.max(USAGE.c.start_utc_ns + USAGE.c.span_ns)).where(USAGE.c.start_utc_ns < selection.end_utc_ns)
    ).scalar()
    if edges[0] is None:
        return selection
    last_ns = max(edge for edge in (edges[1], usage_end, edges[0] + 1) if edge is not None)
    start_ns = max(selection.start_utc_ns, int(edges[0]))
    return msgspec.structs.replace(
        selection, start_utc_ns=start_ns, end_utc_ns=max(start_ns + 1, min(selection.end_utc_ns, int(last_ns)))
    )


def _bin_ns(connection: Connection, selection: Selection) -> int:
    longest = connection.execute(
        select(func.max(USAGE.c.span_ns)).where(
            USAGE.c.start_utc_ns >= selection.start_utc_ns, USAGE.c.start_utc_ns < selection.end_utc_ns
        )
    ).scalar()
    width_ns = selection.end_utc_ns - selection.start_utc_ns
    return max(1, -(-width_ns // BINS_MAX), min(int(longest or 1), width_ns))


def _bins(connection: Connection, selection: Selection, bin_ns: int, now_utc_ns: int) -> list[Bin]:
    place = ((USAGE.c.start_utc_ns - selection.start_utc_ns) // bin_ns).label("place")
    share = cast(USAGE.c.busy_ns, Double()) / func.nullif(USAGE.c.entitled_ns, 0)
    statement = (
        select(
            place,
            *(func.sum(USAGE.c[column]).label(name) for name, column in queries.SUMMED.items()),
            func.sum(share).label("share_sum"),
            func.sum(share * share).label("share_square_sum"),
            func.count(share).label("share_count"),
        )
        .join(JOBS, JOBS.c.id == USAGE.c.job_id)
        .where(USAGE.c.start_utc_ns >= selection.start_utc_ns, USAGE.c.start_utc_ns < selection.end_utc_ns)
        .where(*queries.job_conditions(selection))
        .group_by(place)
    )
    measures: dict[int, Measures] = {}
    for row in connection.execute(statement).mappings():
        sums = {name: int(row[name] or 0) for name in (*queries.SUMMED, "share_count")}
        shares = {name: float(row[name] or 0) for name in ("share_sum", "share_square_sum")}
        measures[int(row["place"])] = msgspec.structs.replace(Measures(**sums), **shares)
    held_ns = _held_bins(connection, selection, bin_ns, now_utc_ns)
    count = -(-(selection.end_utc_ns - selection.start_utc_ns) // bin_ns)
    return [
        Bin(
            start_utc_ns=selection.start_utc_ns + number * bin_ns,
            held_ns=held_ns.get(number, 0),
            measures=measures.get(number, Measures()),
        )
        for number in range(count)
    ]


def _held_bins(connection: Connection, selection: Selection, bin_ns: int, now_utc_ns: int) -> dict[int, int]:
    """Held time of each bin. Jobs are summed by their first and last bin, so a million of them are a few groups."""
    dialect = connection.dialect.name
    start_ns, end_ns = selection.start_utc_ns, min(selection.end_utc_ns, now_utc_ns)
    until = func.coalesce(JOBS.c.until_utc_ns, end_ns)
    first = case((JOBS.c.start_utc_ns < start_ns, 0), else_=JOBS.c.start_utc_ns - start_ns)
    last = least(dialect, until, queries.number(end_ns)) - start_ns
    first_bin, last_bin = (first // bin_ns).label("first_bin"), (last // bin_ns).label("last_bin")
    statement = (
        select(
            first_bin,
            last_bin,
            func.sum(JOBS.c.device_count).label("count"),
            func.sum(JOBS.c.device_count * (first % bin_ns)).label("first_ns"),
            func.sum(JOBS.c.device_count * (last % bin_ns)).label("last_ns"),
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
            held_ns[number] += count * bin_ns
    _take_suspended(connection, selection, bin_ns, end_ns, held_ns)
    return held_ns


def _take_suspended(
    connection: Connection, selection: Selection, bin_ns: int, end_ns: int, held_ns: dict[int, int]
) -> None:
    statement = (
        select(SUSPENSIONS.c.start_utc_ns, SUSPENSIONS.c.span_ns, JOBS.c.device_count)
        .join(JOBS, JOBS.c.id == SUSPENSIONS.c.job_id)
        .where(SUSPENSIONS.c.start_utc_ns < end_ns, *queries.job_conditions(selection))
        .where(SUSPENSIONS.c.start_utc_ns + SUSPENSIONS.c.span_ns > selection.start_utc_ns)
    )
    for from_ns, span_ns, count in connection.execute(statement):
        first_ns = max(from_ns, selection.start_utc_ns) - selection.start_utc_ns
        last_ns = min(from_ns + span_ns, end_ns) - selection.start_utc_ns
        for number in range(first_ns // bin_ns, -(-last_ns // bin_ns)):
            step = (number * bin_ns, (number + 1) * bin_ns)
            held_ns[number] -= count * queries.overlap_ns((first_ns, last_ns), step)


def _memory(connection: Connection, selection: Selection, bin_ns: int) -> list[MemoryBin]:
    place = ((DEVICE_USAGE.c.start_utc_ns - selection.start_utc_ns) // bin_ns).label("place")
    milliseconds = DEVICE_USAGE.c.span_ns // 1_000_000

    def mean(name: str) -> Any:
        # Weighted by milliseconds: byte-nanoseconds of a day do not fit 64 bits.
        weighted: Any = func.sum(cast(DEVICE_USAGE.c[name], Double()) * milliseconds)
        return (weighted / func.nullif(func.sum(milliseconds), 0)).label(name)

    names = ("persistent_bytes_mean", "lane_bytes_mean", "foreign_bytes_mean", "capacity_bytes")
    statement = (
        select(place, NODES.c.name.label("node"), DEVICES.c.uuid, *(mean(name) for name in names))
        .join(DEVICES, DEVICES.c.id == DEVICE_USAGE.c.device_id)
        .join(NODES, NODES.c.id == DEVICES.c.node_id)
        .where(DEVICE_USAGE.c.start_utc_ns >= selection.start_utc_ns)
        .where(DEVICE_USAGE.c.start_utc_ns < selection.end_utc_ns)
        .group_by(place, NODES.c.name, DEVICES.c.uuid)
        .order_by(NODES.c.name, DEVICES.c.uuid, place)
    )
    if selection.nodes:
        statement = statement.where(NODES.c.name.in_(selection.nodes))
    made: list[MemoryBin] = []
    for row in connection.execute(statement).mappings():
        persistent, lanes, foreign, capacity = (int(row[name] or 0) for name in names)
        made.append(
            MemoryBin(
                start_utc_ns=selection.start_utc_ns + int(row["place"]) * bin_ns,
                node=row["node"],
                device=row["uuid"],
                persistent_bytes=persistent,
                ephemeral_bytes=lanes,
                foreign_bytes=foreign,
                free_bytes=max(0, capacity - persistent - lanes - foreign),
            )
        )
    return made


def _spans(connection: Connection, viewer: Viewer, selection: Selection) -> tuple[list[LaneSpan], int]:
    here = [
        LANE_SPANS.c.start_utc_ns < selection.end_utc_ns,
        LANE_SPANS.c.start_utc_ns + LANE_SPANS.c.span_ns > selection.start_utc_ns,
    ]
    wide = msgspec.structs.replace(selection, users=() if not viewer.is_operator else selection.users)
    base = (
        select(LANE_SPANS, JOBS, DEVICES.c.uuid, NODES.c.name.label("node"))
        .join(JOBS, JOBS.c.id == LANE_SPANS.c.job_id)
        .join(DEVICES, DEVICES.c.id == LANE_SPANS.c.device_id)
        .join(NODES, NODES.c.id == DEVICES.c.node_id)
        .where(*here, *queries.job_conditions(wide))
    )
    total = connection.scalar(select(func.count()).select_from(base.with_only_columns(LANE_SPANS.c.job_id).subquery()))
    # The longest first: what is left out is what a screen could not show anyway.
    found: list[LaneSpan] = []
    for row in connection.execute(base.order_by(LANE_SPANS.c.span_ns.desc()).limit(SPANS_MAX)):
        values = row._mapping
        is_known = viewer.is_operator or values[JOBS.c.user] == viewer.user
        start_ns = values[LANE_SPANS.c.start_utc_ns]
        found.append(
            LaneSpan(
                node=values["node"],
                device=values[DEVICES.c.uuid],
                lane=values[LANE_SPANS.c.lane_number],
                job=_name_of(values) if is_known else "",
                user=values[JOBS.c.user] if is_known else "",
                start_utc_ns=start_ns,
                end_utc_ns=start_ns + values[LANE_SPANS.c.span_ns],
                lane_bytes=values[LANE_SPANS.c.lane_bytes],
                iteration_count=values[LANE_SPANS.c.iteration_count],
            )
        )
    found.sort(key=lambda span: (span.node, span.device, span.lane, span.start_utc_ns))
    return found, total or 0


def _marks(connection: Connection, viewer: Viewer, selection: Selection) -> list[Mark]:
    statement = (
        select(EVENTS, JOBS, DEVICES.c.uuid, NODES.c.name.label("node"))
        .outerjoin(JOBS, JOBS.c.id == EVENTS.c.job_id)
        .outerjoin(DEVICES, DEVICES.c.id == EVENTS.c.device_id)
        .outerjoin(NODES, NODES.c.id == DEVICES.c.node_id)
        .where(EVENTS.c.happened_utc_ns >= selection.start_utc_ns, EVENTS.c.happened_utc_ns < selection.end_utc_ns)
        .order_by(EVENTS.c.happened_utc_ns)
        .limit(MARKS_MAX)
    )
    if not viewer.is_operator:
        statement = statement.where((JOBS.c.user == viewer.user) | JOBS.c.user.is_(None))
    return [
        Mark(
            happened_utc_ns=row._mapping[EVENTS.c.happened_utc_ns],
            kind=row._mapping[EVENTS.c.kind],
            node=row._mapping["node"] or "",
            device=row._mapping[DEVICES.c.uuid] or "",
            job="" if row._mapping[JOBS.c.id] is None else _name_of(row._mapping),
            detail=row._mapping[EVENTS.c.detail],
        )
        for row in connection.execute(statement)
    ]


def _waits(connection: Connection, selection: Selection) -> list[LongWait]:
    statement = (
        select(JOBS)
        .where(JOBS.c.start_utc_ns >= selection.start_utc_ns, JOBS.c.start_utc_ns < selection.end_utc_ns)
        .where(JOBS.c.wait_ns.is_not(None), *queries.job_conditions(selection))
        .order_by(JOBS.c.wait_ns.desc(), JOBS.c.id)
        .limit(WAITS_MAX)
    )
    jobs = [dict(row) for row in connection.execute(statement).mappings()]
    reasons = _reasons(connection, [job["admission"] for job in jobs if job["admission"]])
    return [
        LongWait(
            job=job_name(job),
            restart_count=job["restart_count"],
            user=job["user"],
            account=job["account"],
            wait_ns=job["wait_ns"],
            start_utc_ns=job["start_utc_ns"],
            reasons=reasons.get((job["cluster_id"], job["admission"]), []),
        )
        for job in jobs
    ]


def _reasons(connection: Connection, admissions: list[str]) -> dict[tuple[int, str], list[str]]:
    statement = (
        select(ADMISSIONS.c.cluster_id, ADMISSIONS.c.name, REASONS)
        .join(REASONS, REASONS.c.admission_id == ADMISSIONS.c.id)
        .where(ADMISSIONS.c.name.in_(admissions))
        .order_by(REASONS.c.admission_id, REASONS.c.position)
    )
    found: dict[tuple[int, str], list[str]] = defaultdict(list)
    for row in connection.execute(statement).mappings():
        found[row["cluster_id"], row["name"]].append(reason_text(row))
    return found


def reason_text(row: Any) -> str:
    """One shortfall in words, as admission told it."""
    told = f"{row['what']}: {row['needed']} {row['unit']} needed, {row['free']} free"
    return f"{told}; {row['advice']}" if row["advice"] else told


def _name_of(values: Any) -> str:
    names = ("slurm_job_id", "array_job_id", "array_task_id", "het_job_id", "het_offset")
    row: Row = {name: values[JOBS.c[name]] for name in names}
    return job_name(row)
