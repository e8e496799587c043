"""Fairness over time: Jain's index of achieved over entitled, one point a step."""

from accounting.figures import Figures
from cli.moments import format_moment
from cli.report.chart import PURPLE, Chart, Table, milliseconds, time_axis


def fairness(figures: Figures) -> Chart:
    """Steps in which nobody wanted a device have no point: the line is broken there."""
    points = [(step, step.measures.jain) for step in figures.bins]
    traces = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": "Jain index",
            "x": [milliseconds(step.start_utc_ns) for step, _ in points],
            "y": [None if value is None else round(value, 4) for _, value in points],
            "line": {"color": PURPLE, "width": 2},
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
        note="1 means that every job had the same part of what it was entitled to.",
        traces=traces if any(value is not None for _, value in points) else (),
        layout={"xaxis": time_axis(), "yaxis": {"title": {"text": "Jain index"}, "range": [0, 1.05]}},
        table=Table(("From", "Jain", "Shares"), rows, frozenset({1, 2})),
    )
