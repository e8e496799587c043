"""The longest waits in Slurm's queue, with the reasons that admission stated."""

from accounting.reports.values import LongWait, ReportCharts
from cli.acct.page.chart import SKY, Chart, ChartTable, label
from cli.output.moments import format_duration, format_moment
from nodedaemon.core.types import SECOND_NS

UNITS = (("hours", 3600 * SECOND_NS), ("minutes", 60 * SECOND_NS))


def waits(charts: ReportCharts) -> Chart:
    """The longest waits, longest first."""
    shown = charts.waits
    unit, unit_ns = next(
        ((name, ns) for name, ns in UNITS if any(wait.wait_ns >= 2 * ns for wait in shown)), ("seconds", SECOND_NS)
    )
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": "wait",
            "y": [label(f"job {_run(wait)} ({wait.user})") for wait in reversed(shown)],
            "x": [round(wait.wait_ns / unit_ns, 3) for wait in reversed(shown)],
            "marker": {"color": SKY, "line": {"width": 1, "color": "#555555"}},
        }
    ]
    rows = [
        [
            _run(wait),
            wait.user,
            wait.account,
            format_duration(wait.wait_ns),
            format_moment(wait.start_utc_ns),
            "; ".join(wait.reasons) or "Slurm's own queue",
        ]
        for wait in shown
    ]
    return Chart(
        key="waits",
        title="Longest waits",
        note="Time from eligible to start, like Planned in sacct.",
        traces=traces if shown else (),
        layout={
            "xaxis": {"title": {"text": unit}},
            "yaxis": {"type": "category", "automargin": True},
            "height": 140 + 22 * max(3, len(shown)),
        },
        table=ChartTable(("Job", "User", "Account", "Wait", "Started", "Reasons"), rows, frozenset({3})),
    )


def _run(wait: LongWait) -> str:
    return f"{wait.job} restart {wait.restart_count}" if wait.restart_count else wait.job
