"""Held against occupied against busy: how many devices jobs kept, took part in, and really used."""

from accounting.reports.figures import Figures
from cli.acct.page.chart import BLUE, GREEN, ORANGE, Chart, Table, step_line, time_axis
from cli.output.moments import format_moment


def timeline(figures: Figures) -> Chart:
    """Mean devices in each step, so that a line at 2.0 means two devices all the time."""
    bins = figures.bins
    # Wide below narrow: where occupied is all busy, both can be seen.
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
        note="Mean devices in each step. Held above occupied: devices were shared; occupied above busy: they idled.",
        traces=traces if bins else (),
        layout={"xaxis": time_axis(figures), "yaxis": {"title": {"text": "devices"}, "rangemode": "tozero"}},
        table=Table(("From", "Held", "Occupied", "Busy"), rows, frozenset({1, 2, 3})),
    )
