"""Held against occupied against busy: how many devices jobs kept, took part in, and really used."""

from accounting.figures import Figures
from cli.moments import format_moment
from cli.report.chart import BLUE, GREEN, ORANGE, Chart, Table, milliseconds, time_axis


def timeline(figures: Figures) -> Chart:
    """Mean devices in each step, so that a line at 2.0 means two devices all the time."""
    width = figures.bin_ns
    starts = [milliseconds(step.start_utc_ns) for step in figures.bins]
    lines = (
        ("Held", ORANGE, "dash", [step.held_ns / width for step in figures.bins]),
        ("Occupied", BLUE, "solid", [step.measures.occupied_ns / width for step in figures.bins]),
        ("Busy", GREEN, "dot", [step.measures.busy_ns / width for step in figures.bins]),
    )
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": starts,
            "y": [round(value, 4) for value in values],
            "line": {"color": color, "dash": dash, "shape": "hv", "width": 2},
        }
        for name, color, dash, values in lines
    ]
    rows = [
        [format_moment(step.start_utc_ns), *(f"{values[number]:.3f}" for _, _, _, values in lines)]
        for number, step in enumerate(figures.bins)
    ]
    return Chart(
        key="timeline",
        title="Held, occupied and busy",
        note="Mean devices in each step. Held above occupied: devices were shared; occupied above busy: they idled.",
        traces=traces if figures.bins else (),
        layout={"xaxis": time_axis(), "yaxis": {"title": {"text": "devices"}, "rangemode": "tozero"}},
        table=Table(("From", "Held", "Occupied", "Busy"), rows, frozenset({1, 2, 3})),
    )
