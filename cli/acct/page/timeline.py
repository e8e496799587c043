"""Held, occupied and busy devices over time."""

from accounting.reports.values import ReportCharts
from cli.acct.page.chart import BLUE, GREEN, ORANGE, Chart, ChartTable, step_line, time_axis
from cli.output.moments import format_moment


def timeline(charts: ReportCharts) -> Chart:
    """The mean number of devices per step: 2.0 means two devices all the time."""
    bins = charts.bins
    # A wide line below a narrow one, so that both are visible where they coincide.
    lines = (
        ("Held", ORANGE, "dash", 2, [step.held_ns / step.span_ns for step in bins]),
        ("Occupied", BLUE, "solid", 4, [step.measures.occupied_ns / step.span_ns for step in bins]),
        ("Busy", GREEN, "dot", 2, [step.measures.busy_ns / step.span_ns for step in bins]),
    )
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            **step_line(bins, [round(value, 4) for value in values]),
            "line": {"color": color, "dash": dash, "shape": "hv", "width": width},
        }
        for name, color, dash, width, values in lines
    ]
    rows = [
        [format_moment(step.start_utc_ns), *(f"{values[number]:.3f}" for *_, values in lines)]
        for number, step in enumerate(bins)
    ]
    return Chart(
        key="timeline",
        title="Held, occupied and busy",
        note="Mean number of devices. Held above occupied: they were shared. Occupied above busy: they were idle.",
        traces=traces if bins else (),
        layout={"xaxis": time_axis(charts), "yaxis": {"title": {"text": "devices"}, "rangemode": "tozero"}},
        table=ChartTable(("From", "Held", "Occupied", "Busy"), rows, frozenset({1, 2, 3})),
    )
