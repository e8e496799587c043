"""Fairness over time: Jain's index of achieved over entitled, per step."""

from accounting.reports.values import ReportCharts
from cli.acct.page.chart import PURPLE, Chart, ChartTable, step_line, time_axis
from cli.output.moments import format_moment


def fairness(charts: ReportCharts) -> Chart:
    """Jain's index over time. The line has a gap where no job wanted a device."""
    points = [(step, step.measures.jain) for step in charts.bins]
    known = [(step, value) for step, value in points if value is not None]
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "Jain index",
            **step_line([step for step, _ in known], [round(value, 4) for _, value in known]),
            "line": {"color": PURPLE, "shape": "hv", "width": 3},
            "connectgaps": False,
        }
    ]
    rows = [
        [format_moment(step.start_utc_ns), "n/a" if value is None else f"{value:.3f}", str(step.measures.share_count)]
        for step, value in points
    ]
    return Chart(
        key="fairness",
        title="Fairness",
        note="1 means that every job got the same fraction of what it was entitled to.",
        traces=traces if known else (),
        layout={"xaxis": time_axis(charts), "yaxis": {"title": {"text": "Jain index"}, "range": [0, 1.05]}},
        table=ChartTable(("From", "Jain", "Shares"), rows, frozenset({1, 2})),
    )
