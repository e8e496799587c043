"""Gantt chart of lanes: which job was in which lane of which device, with the device's events."""

import msgspec

from accounting.reports.values import LaneSpan, ReportCharts
from cli.acct.job_text import size
from cli.acct.page.chart import GREY, PALETTE, PATTERNS, VERMILION, Chart, ChartTable, label, milliseconds, time_axis
from cli.output.moments import format_moment

ROW_HEIGHT = 26
HEIGHT_MAX = 1600
#: A shorter gap between two records comes from the timer and is not shown.
JOIN_GAP_NS = 250_000_000
HOVER = "job %{customdata[0]}<br>from %{base|%F %T}<br>lane of %{customdata[1]}<extra>%{fullData.name}</extra>"


def lanes(charts: ReportCharts) -> Chart:
    """One row per lane, one colour and pattern per user, crosses for events."""
    stays = _joined(charts.spans)
    rows_of = _tracks(stays)
    row_names = sorted(set(rows_of), reverse=True)
    owners = sorted({span.user for span in charts.spans if span.user})
    placed = list(zip(stays, rows_of, strict=True))
    traces = [_bars(placed, user, number) for number, user in enumerate(owners)]
    if any(not span.user for span in charts.spans):
        traces.append(_bars(placed, "", len(owners)))
    if charts.marks and row_names:
        traces.append(_marks(charts, row_names, _short_names(charts.spans)))
    left_out = charts.span_count - len(charts.spans)
    note = "One row per lane. The lanes of a device share its time. Crosses are events such as overruns and faults."
    rows = [
        [
            span.node,
            span.device,
            str(span.lane),
            span.job or "other",
            span.user or "-",
            format_moment(span.start_utc_ns),
            format_moment(span.end_utc_ns),
            size(span.lane_bytes),
        ]
        for span in charts.spans
    ]
    return Chart(
        key="lanes",
        title="Lanes",
        note=note + (f" The {left_out} shortest stays are not shown." if left_out else ""),
        traces=traces if charts.spans else (),
        layout={
            "barmode": "overlay",
            "xaxis": time_axis(charts),
            "yaxis": {"type": "category", "categoryarray": row_names, "automargin": True},
            "height": min(HEIGHT_MAX, 160 + ROW_HEIGHT * len(row_names)),
        },
        table=ChartTable(("Node", "Device", "Lane", "Job", "User", "From", "To", "Lane size"), rows, frozenset({2, 7})),
    )


def _joined(spans: list[LaneSpan]) -> list[LaneSpan]:
    """Join consecutive stays of a job in a lane, which a timer records piece by piece."""
    joined: list[LaneSpan] = []
    last: dict[tuple[str, str, int, str], int] = {}
    for span in spans:
        key = (span.node, span.device, span.lane, span.job)
        before = joined[last[key]] if key in last else None
        if before is not None and span.job and span.start_utc_ns <= before.end_utc_ns + JOIN_GAP_NS:
            end_utc_ns = max(before.end_utc_ns, span.end_utc_ns)
            joined[last[key]] = msgspec.structs.replace(before, end_utc_ns=end_utc_ns)
        else:
            last[key] = len(joined)
            joined.append(span)
    return joined


def _tracks(spans: list[LaneSpan]) -> list[str]:
    """The row of each span: its lane, or an additional row of it while several jobs take turns there."""
    ends: dict[tuple[str, str, int], list[int]] = {}
    rows: list[str] = []
    short = _short_names(spans)
    # Spans are ordered by lane and start, so the first free track is the right one.
    for span in spans:
        tracks = ends.setdefault((span.node, span.device, span.lane), [])
        number = next((n for n, end_ns in enumerate(tracks) if end_ns <= span.start_utc_ns), len(tracks))
        tracks[number : number + 1] = [span.end_utc_ns]
        suffix = f" ({number + 1})" if number else ""
        rows.append(f"{span.node} {short[span.device]} lane {span.lane}{suffix}")
    return rows


def _short_names(spans: list[LaneSpan]) -> dict[str, str]:
    """Each device's UUID up to its second hyphen, if that is unique. The table has the full UUID."""
    devices = {span.device for span in spans}
    short = {device: "-".join(device.split("-")[:2]) for device in devices}
    return short if len(set(short.values())) == len(devices) else {device: device for device in devices}


def _bars(placed: list[tuple[LaneSpan, str]], user: str, number: int) -> dict[str, object]:
    mine = [(span, row) for span, row in placed if span.user == user]
    pattern = PATTERNS[number // len(PALETTE) % len(PATTERNS)]
    return {
        "type": "bar",
        "orientation": "h",
        "name": label(user) if user else "Other users",
        "y": [row for _, row in mine],
        "base": [milliseconds(span.start_utc_ns) for span, _ in mine],
        "x": [milliseconds(span.end_utc_ns) - milliseconds(span.start_utc_ns) for span, _ in mine],
        "text": [label(f"job {span.job}") if span.job else "" for span, _ in mine],
        "customdata": [[label(span.job or "other"), size(span.lane_bytes)] for span, _ in mine],
        "hovertemplate": HOVER,
        "textposition": "inside",
        "insidetextanchor": "start",
        "marker": {
            "color": PALETTE[number % len(PALETTE)] if user else GREY,
            "line": {"width": 0.5, "color": "#ffffff"},
            "pattern": {"shape": pattern},
        },
    }


def _marks(charts: ReportCharts, row_names: list[str], short: dict[str, str]) -> dict[str, object]:
    shown = []
    for mark in charts.marks:
        device = short.get(mark.device, mark.device)
        place = next((place for place in reversed(row_names) if place.startswith(f"{mark.node} {device} lane ")), None)
        if place is not None:
            shown.append((mark, place))
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "Events",
        "x": [milliseconds(mark.happened_utc_ns) for mark, _ in shown],
        "y": [place for _, place in shown],
        "text": [label(f"{mark.kind} {mark.job} {mark.detail}") for mark, _ in shown],
        "hovertemplate": "%{text}<br>%{x|%F %T}<extra></extra>",
        "marker": {"symbol": "x", "size": 11, "color": VERMILION, "line": {"width": 1, "color": "#000000"}},
    }
