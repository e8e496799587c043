"""The key figures at the top of the page."""

from accounting.reports.values import Report
from cli.acct.report_fields import Scale
from cli.output.moments import format_duration
from nodedaemon.core.types import HOUR_NS


def tiles(report: Report) -> list[tuple[str, str, str]]:
    """The key figures of a report: name, value, and what the value means."""
    total, summary = report.total, report.summary
    scale = Scale(unit=None, total=total)
    refused, waited = summary.refused_count, summary.made_to_wait_count
    return [
        ("Held", f"{total.held_ns / HOUR_NS:.2f} h", "device-hours if each job had whole devices"),
        ("Occupied", f"{total.occupied_ns / HOUR_NS:.2f} h", "device-hours that the jobs took"),
        ("Busy", f"{total.busy_ns / HOUR_NS:.2f} h", "device-hours with an iteration running"),
        ("Efficiency", _ratio(total.efficiency, "{:.1%}"), "busy / occupied"),
        ("Sharing gain", _ratio(total.sharing_gain, "{:.2f}x"), "alone / occupied"),
        ("Slowdown", _ratio(total.slowdown, "{:.2f}x"), "elapsed / alone"),
        ("Memory saved", _memory(scale.memory(total.memory_saved_mib_ms)), "sum of peaks minus memory held"),
        ("Fairness", _ratio(total.jain, "{:.2f}"), "Jain index"),
        ("Median wait", _duration(summary.wait_median_ns), f"p95 {_duration(summary.wait_p95_ns)}"),
        ("OOM avoided", str(refused + waited), f"{refused} refused at submit, {waited} made to wait"),
    ]


def _memory(text: str) -> str:
    """Replace sacct's short units, which are for tables."""
    return text.replace(".h", " h").replace("M ", " MiB·").replace("G ", " GiB·").replace("T ", " TiB·")


def _ratio(value: float | None, form: str) -> str:
    return "n/a" if value is None else form.format(value)


def _duration(span_ns: int | None) -> str:
    return "n/a" if span_ns is None else format_duration(span_ns)
