"""What the charts of the HTML report show: bins, lane spans, events, waits and profile changes, limited in number.

Jobs of other users appear without their names.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec
from sqlalchemy import Connection, func, select

from accounting.profiles import list_changes
from accounting.reports import queries
from accounting.reports.bins import bins_of, grid_of, memory_of
from accounting.reports.report import job_name, joined_job_name
from accounting.reports.selection import Selection
from accounting.reports.values import EventMark, LaneSpan, LongWait, ReportCharts
from accounting.storage.database import Database
from accounting.storage.tables import ADMISSIONS, DEVICES, EVENTS, JOBS, LANE_SPANS, NODES, REASONS, USAGE
from accounting.viewer import Viewer

SPANS_MAX = 4000
MARKS_MAX = 500
WAITS_MAX = 20


def make_charts(
    database: Database,
    viewer: Viewer,
    selection: Selection,
    *,
    now_utc_ns: int,
    on_step: Callable[[str], None] | None = None,
) -> ReportCharts:
    """The charts of a report over `selection`, as far as `viewer` may see it."""
    selection = queries.restricted(selection, viewer)
    report_step = on_step or (lambda _step: None)
    with database.reading() as connection:
        selection = _narrowed(connection, selection, now_utc_ns)
        grid = grid_of(connection, selection)
        report_step("timeline")
        bins = bins_of(connection, selection, grid, now_utc_ns)
        report_step("memory")
        memory = memory_of(connection, selection, grid)
        report_step("lanes")
        spans, span_count = _spans(connection, viewer, selection)
        marks = _marks(connection, viewer, selection)
        waits = _waits(connection, selection)
    report_step("profiles")
    window = (selection.start_utc_ns, selection.end_utc_ns)
    return ReportCharts(
        bin_ns=grid.bin_ns,
        bins=bins,
        memory=memory,
        spans=spans,
        span_count=span_count,
        marks=marks,
        waits=waits,
        changes=list_changes(database, viewer, users=selection.users, window=window, count_max=100),
    )


def _narrowed(connection: Connection, selection: Selection, now_utc_ns: int) -> Selection:
    """The part of the window with activity: one hour of activity in a month would be too narrow to see."""
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


def _spans(connection: Connection, viewer: Viewer, selection: Selection) -> tuple[list[LaneSpan], int]:
    conditions = [
        LANE_SPANS.c.start_utc_ns < selection.end_utc_ns,
        LANE_SPANS.c.start_utc_ns + LANE_SPANS.c.span_ns > selection.start_utc_ns,
    ]
    wide = msgspec.structs.replace(selection, users=() if not viewer.is_operator else selection.users)
    base = (
        select(LANE_SPANS, JOBS, DEVICES.c.uuid, NODES.c.name.label("node"))
        .join(JOBS, JOBS.c.id == LANE_SPANS.c.job_id)
        .join(DEVICES, DEVICES.c.id == LANE_SPANS.c.device_id)
        .join(NODES, NODES.c.id == DEVICES.c.node_id)
        .where(*conditions, *queries.job_conditions(wide))
    )
    total = connection.scalar(select(func.count()).select_from(base.with_only_columns(LANE_SPANS.c.job_id).subquery()))
    # Keep the longest spans: those that the limit drops would be too short to see.
    found: list[LaneSpan] = []
    for values in connection.execute(base.order_by(LANE_SPANS.c.span_ns.desc()).limit(SPANS_MAX)).mappings():
        is_visible = viewer.is_operator or values[JOBS.c.user] == viewer.user
        start_ns = values[LANE_SPANS.c.start_utc_ns]
        found.append(
            LaneSpan(
                node=values["node"],
                device=values[DEVICES.c.uuid],
                lane=values[LANE_SPANS.c.lane_number],
                job=joined_job_name(values) if is_visible else "",
                user=values[JOBS.c.user] if is_visible else "",
                start_utc_ns=start_ns,
                end_utc_ns=start_ns + values[LANE_SPANS.c.span_ns],
                lane_bytes=values[LANE_SPANS.c.lane_bytes],
                iteration_count=values[LANE_SPANS.c.iteration_count],
            )
        )
    found.sort(key=lambda span: (span.node, span.device, span.lane, span.start_utc_ns))
    return found, total or 0


def _marks(connection: Connection, viewer: Viewer, selection: Selection) -> list[EventMark]:
    statement = (
        select(EVENTS, JOBS, DEVICES.c.uuid, NODES.c.name.label("node"))
        .outerjoin(JOBS, JOBS.c.id == EVENTS.c.job_id)
        .outerjoin(DEVICES, DEVICES.c.id == EVENTS.c.device_id)
        .outerjoin(NODES, NODES.c.id == DEVICES.c.node_id)
        .where(queries.within(EVENTS.c.happened_utc_ns, selection))
        .order_by(EVENTS.c.happened_utc_ns)
        .limit(MARKS_MAX)
    )
    if not viewer.is_operator:
        statement = statement.where((JOBS.c.user == viewer.user) | JOBS.c.user.is_(None))
    return [
        EventMark(
            happened_utc_ns=values[EVENTS.c.happened_utc_ns],
            kind=values[EVENTS.c.kind],
            node=values["node"] or "",
            device=values[DEVICES.c.uuid] or "",
            job="" if values[JOBS.c.id] is None else joined_job_name(values),
            detail=values[EVENTS.c.detail],
        )
        for values in connection.execute(statement).mappings()
    ]


def _waits(connection: Connection, selection: Selection) -> list[LongWait]:
    statement = (
        select(JOBS)
        .where(queries.within(JOBS.c.start_utc_ns, selection), JOBS.c.wait_ns.is_not(None))
        .where(*queries.job_conditions(selection))
        .order_by(JOBS.c.wait_ns.desc(), JOBS.c.id)
        .limit(WAITS_MAX)
    )
    jobs = [dict(row) for row in connection.execute(statement).mappings()]
    reasons = _reasons(connection, [job["admission"] for job in jobs if job["admission"]])
    names = ("restart_count", "user", "account", "wait_ns", "start_utc_ns")
    return [
        LongWait(
            job=job_name(job),
            reasons=reasons[job["cluster_id"], job["admission"]],
            **{name: job[name] for name in names},
        )
        for job in jobs
    ]


def _reasons(connection: Connection, admissions: list[str]) -> defaultdict[tuple[int, str], list[str]]:
    statement = (
        select(ADMISSIONS.c.cluster_id, ADMISSIONS.c.name, REASONS)
        .join(REASONS, REASONS.c.admission_id == ADMISSIONS.c.id)
        .where(ADMISSIONS.c.name.in_(admissions))
        .order_by(REASONS.c.admission_id, REASONS.c.position)
    )
    found: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
    for row in connection.execute(statement).mappings():
        found[row["cluster_id"], row["name"]].append(reason_text(row))
    return found


def reason_text(row: Any) -> str:
    """One shortfall of an admission as text."""
    shortfall = f"{row['what']}: {row['needed']} {row['unit']} needed, {row['free']} free"
    return f"{shortfall}; {row['advice']}" if row["advice"] else shortfall
