"""What all charts of the HTML report share: a chart for Plotly, its table, and the palette.

Each chart is a function from report values to a Chart, without I/O. The colours are those of Okabe and Ito, which
colour-blind readers can tell apart. Lines also differ by dash and bars by pattern, for black-and-white prints.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from accounting.reports.values import ReportCharts, Step
from nodedaemon.core.types import MILLISECOND_NS

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, YELLOW, GREY = "#56B4E9", "#CC79A7", "#F0E442", "#999999"
PALETTE = (BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, YELLOW)
PATTERNS = ("", "/", "x", "-", ".", "+", "\\")

# Longer tables are truncated, with a note, so that the page opens on a laptop.
TABLE_ROWS_MAX = 1000


@dataclass(frozen=True)
class ChartTable:
    """Headings and rows of plain text. The page right-aligns the columns in `numeric`."""

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
    """One section of the page. Without `traces`, the page says that there is nothing to draw."""

    key: str
    title: str
    note: str
    table: ChartTable
    traces: Sequence[dict[str, Any]] = ()
    layout: dict[str, Any] = field(default_factory=dict)


def label(text: str) -> str:
    """Text for Plotly, which interprets some HTML tags: a job may have the name <b>."""
    return escape(text, quote=False)


def milliseconds(utc_ns: int) -> int:
    """A date in Plotly's format: milliseconds since the epoch."""
    return utc_ns // MILLISECOND_NS


def step_line(steps: Sequence[Step], values: Sequence[float], *, between: float | None = None) -> dict[str, Any]:
    """The points of a line that keeps each value until its step ends, and is `between` where steps are missing."""
    line: dict[str, Any] = {"x": [], "y": []}
    for number, (step, value) in enumerate(zip(steps, values, strict=True)):
        end_ns = step.start_utc_ns + step.span_ns
        is_followed = number + 1 < len(steps) and steps[number + 1].start_utc_ns <= end_ns
        line["x"] += [milliseconds(step.start_utc_ns)] + ([] if is_followed else [milliseconds(end_ns)] * 2)
        line["y"] += [value] + ([] if is_followed else [value, between])
    return line


def time_axis(charts: ReportCharts) -> dict[str, Any]:
    """The common time axis: a moment has the same position in every chart."""
    axis: dict[str, Any] = {"type": "date", "title": {"text": "UTC"}, "automargin": True}
    if charts.bins:
        last = charts.bins[-1]
        first_ns, last_ns = charts.bins[0].start_utc_ns, last.start_utc_ns + last.span_ns
        # Leave room for half a mark at each edge.
        room_ns = (last_ns - first_ns) // 100
        axis["range"] = [milliseconds(first_ns - room_ns), milliseconds(last_ns + room_ns)]
    return axis
