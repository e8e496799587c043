"""Memory over time: persistent, ephemeral (lanes) and free, which add up to the capacity."""

from collections import defaultdict

from accounting.reports.values import MemoryBin, ReportCharts
from cli.acct.job_text import size
from cli.acct.page.chart import BLUE, ORANGE, SKY, Chart, ChartTable, step_line, time_axis
from cli.output.moments import format_moment
from nodedaemon.core.types import GIB

# With more devices than this, the page shows only the sum.
DEVICES_MAX = 6

KINDS = (
    ("Persistent", "persistent_bytes", BLUE, "rgba(0,114,178,0.85)", ""),
    ("Ephemeral (lanes)", "ephemeral_bytes", ORANGE, "rgba(230,159,0,0.85)", "/"),
    ("Free", "free_bytes", SKY, "rgba(86,180,233,0.18)", ""),
)


def memory(charts: ReportCharts) -> list[Chart]:
    """The sum over all devices and, if there are few, each device."""
    by_device: dict[tuple[str, str], list[MemoryBin]] = defaultdict(list)
    for step in charts.memory:
        by_device[step.node, step.device].append(step)
    shown = [_chart(charts, "memory", "Memory of all devices", _sum(charts.memory))]
    if 1 < len(by_device) <= DEVICES_MAX:
        for number, ((node, device), steps) in enumerate(sorted(by_device.items())):
            shown.append(_chart(charts, f"memory-{number}", f"Memory of {node} {device}", steps))
    return shown


def _sum(steps: list[MemoryBin]) -> list[MemoryBin]:
    by_time: dict[tuple[int, int], list[MemoryBin]] = defaultdict(list)
    for step in steps:
        by_time[step.start_utc_ns, step.span_ns].append(step)
    names = [name for _, name, _, _, _ in KINDS]
    return [
        MemoryBin(
            start_utc_ns=start_ns,
            span_ns=span_ns,
            node="",
            device="",
            **{name: sum(getattr(step, name) for step in group) for name in names},
        )
        for (start_ns, span_ns), group in sorted(by_time.items())
    ]


def _chart(charts: ReportCharts, key: str, title: str, steps: list[MemoryBin]) -> Chart:
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "stackgroup": "memory",
            "name": name,
            # There are no records for the time while the daemon was down.
            **step_line(steps, [round(getattr(step, attribute) / GIB, 4) for step in steps], between=0),
            "line": {"color": color, "width": 1, "shape": "hv"},
            "fillcolor": fill,
            "fillpattern": {"shape": pattern, "size": 7, "solidity": 0.3, "fgcolor": "#ffffff", "bgcolor": fill}
            if pattern
            else {},
        }
        for name, attribute, color, fill, pattern in KINDS
    ]
    rows = [
        [format_moment(step.start_utc_ns), *(size(getattr(step, attribute)) for _, attribute, _, _, _ in KINDS)]
        for step in steps
    ]
    return Chart(
        key=key,
        title=title,
        note="Mean per step. Ephemeral is the memory of the lanes, whichever job runs in them.",
        traces=traces if steps else (),
        layout={"xaxis": time_axis(charts), "yaxis": {"title": {"text": "GiB"}, "rangemode": "tozero"}},
        table=ChartTable(("From", *(name for name, _, _, _, _ in KINDS)), rows, frozenset({1, 2, 3})),
    )
