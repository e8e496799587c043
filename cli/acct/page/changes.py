"""Changes of profiles in the window, measured or set."""

from accounting.reports.values import ReportCharts
from cli.acct.job_text import size
from cli.acct.page.chart import GREEN, ORANGE, Chart, ChartTable, label, milliseconds, time_axis
from cli.output.moments import format_moment
from nodedaemon.core.types import GIB


def changes(charts: ReportCharts) -> Chart:
    """Profile versions over time."""
    shown = charts.changes
    traces = [
        {
            "type": "scatter",
            # Draw the whole mark even if it is on the axis.
            "cliponaxis": False,
            "mode": "markers",
            "name": name,
            "x": [milliseconds(change.changed_utc_ns) for change in shown],
            "y": [round(getattr(change, attribute) / GIB, 4) for change in shown],
            "text": [label(f"{change.key.signature} v{change.version} {change.cause}") for change in shown],
            "hovertemplate": "%{text}<br>%{y} GiB<extra>%{fullData.name}</extra>",
            "marker": {"color": color, "symbol": symbol, "size": 9},
        }
        for name, attribute, color, symbol in (
            ("Persistent", "persistent_bytes", GREEN, "circle"),
            ("Ephemeral", "ephemeral_bytes", ORANGE, "diamond"),
        )
    ]
    rows = [
        [
            format_moment(change.changed_utc_ns),
            change.key.user,
            change.key.signature,
            change.key.device_model,
            str(change.version),
            size(change.persistent_bytes),
            size(change.ephemeral_bytes),
            change.cause,
            change.changed_by,
        ]
        for change in shown
    ]
    headings = ("When", "User", "Signature", "Model", "Version", "Persistent", "Ephemeral", "Cause", "By")
    return Chart(
        key="changes",
        title="Profile changes",
        note="Each point is a new version of a profile.",
        traces=traces if shown else (),
        layout={"xaxis": time_axis(charts), "yaxis": {"title": {"text": "GiB"}, "rangemode": "tozero"}},
        table=ChartTable(headings, rows, frozenset({4, 5, 6})),
    )
