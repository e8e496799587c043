"""What every figure of the HTML report is made of: a chart for Plotly, the table behind it, and the palette.

A figure is a pure function from read models to a Chart. Colours are those of Okabe and Ito, which stay apart for
colour-blind readers; lines differ by dash and bars by pattern as well, so that a grey print can be read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from accounting.reports.bins import Bin, MemoryBin
from accounting.reports.figures import Figures

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, YELLOW, GREY = "#56B4E9", "#CC79A7", "#F0E442", "#999999"
PALETTE = (BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, YELLOW)
PATTERNS = ("", "/", "x", "-", ".", "+", "\\")

# A table longer than this is cut, and says so: the page must open on a laptop.
TABLE_ROWS_MAX = 1000


@dataclass(frozen=True)
class Table:
    """Headings and rows of plain text; numbers are right-aligned by the page where `numeric` says so."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: frozenset[int] = frozenset()

    @property
    def shown(self) -> Sequence[Sequence[str]]:
        return self.rows[:TABLE_ROWS_MAX]

    @property
    def cut_count(self) -> int:
        return max(0, len(self.rows) - TABLE_ROWS_MAX)


@dataclass(frozen=True)
class Chart:
    """One section of the page. `traces` is empty where there is nothing to draw; the page then says so."""

    key: str
    title: str
    note: str
    table: Table
    traces: Sequence[dict[str, Any]] = ()
    layout: dict[str, Any] = field(default_factory=dict)


def label(text: str) -> str:
    """Text for Plotly, which reads a few tags: a job may be called <b>."""
    return escape(text, quote=False)


def milliseconds(utc_ns: int) -> int:
    """Plotly's dates: milliseconds since the epoch."""
    return utc_ns // 1_000_000


def step_line(
    steps: Sequence[Bin | MemoryBin], values: Sequence[float], *, between: float | None = None
) -> dict[str, Any]:
    """Both axes of a line that keeps each value until its step ends, and is `between` where steps are missing."""
    line: dict[str, Any] = {"x": [], "y": []}
    for number, (step, value) in enumerate(zip(steps, values, strict=True)):
        end_ns = step.start_utc_ns + step.span_ns
        is_followed = number + 1 < len(steps) and steps[number + 1].start_utc_ns <= end_ns
        line["x"] += [milliseconds(step.start_utc_ns)] + ([] if is_followed else [milliseconds(end_ns)] * 2)
        line["y"] += [value] + ([] if is_followed else [value, between])
    return line


def time_axis(figures: Figures) -> dict[str, Any]:
    """The axis that all charts over time share: the same moment stands at the same place in each."""
    axis: dict[str, Any] = {"type": "date", "title": {"text": "UTC"}, "automargin": True}
    if figures.bins:
        last = figures.bins[-1]
        first_ns, last_ns = figures.bins[0].start_utc_ns, last.start_utc_ns + last.span_ns
        # Room for half a mark at either edge.
        room_ns = (last_ns - first_ns) // 100
        axis["range"] = [milliseconds(first_ns - room_ns), milliseconds(last_ns + room_ns)]
    return axis
