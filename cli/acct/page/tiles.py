"""The key figures at the top of the page."""

from dataclasses import dataclass

from accounting.reports.report import Report
from cli.acct.report_fields import Scale
from cli.output.moments import format_duration

HOUR_NS = 3_600 * 1_000_000_000


@dataclass(frozen=True)
class Tile:
    """One figure: its name, its value, and what it means."""

    name: str
    value: str
    note: str


def tiles(report: Report) -> list[Tile]:
    """The key figures of a report."""
    total, summary = report.total, report.summary
    scale = Scale(unit=None, total=total)
    avoided = summary.refused_count + summary.made_to_wait_count
    return [
        Tile("Held", f"{total.held_ns / HOUR_NS:.2f} h", "device-hours if each job had whole devices"),
        Tile("Occupied", f"{total.occupied_ns / HOUR_NS:.2f} h", "device-hours that the jobs took"),
        Tile("Busy", f"{total.busy_ns / HOUR_NS:.2f} h", "device-hours with an iteration running"),
        Tile("Efficiency", _percent(total.efficiency), "busy / occupied"),
        Tile("Sharing gain", _times(total.sharing_gain), "alone / occupied"),
        Tile("Slowdown", _times(total.slowdown), "elapsed / alone"),
        Tile("Memory saved", _memory(scale.memory(total.memory_saved_mib_ms)), "sum of peaks minus memory held"),
        Tile("Fairness", "n/a" if total.jain is None else f"{total.jain:.2f}", "Jain index"),
        Tile("Median wait", _duration(summary.wait_median_ns), f"p95 {_duration(summary.wait_p95_ns)}"),
        Tile(
            "OOM avoided",
            str(avoided),
            f"{summary.refused_count} refused at submit, {summary.made_to_wait_count} made to wait",
        ),
    ]


def _memory(text: str) -> str:
    """Replace sacct's short units, which are for tables."""
    return text.replace(".h", " h").replace("M ", " MiB·").replace("G ", " GiB·").replace("T ", " TiB·")


def _percent(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.1%}"


def _times(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}x"


def _duration(span_ns: int | None) -> str:
    return "n/a" if span_ns is None else format_duration(span_ns)
