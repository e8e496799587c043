"""The per-account figures: bars of held, occupied and busy, and the table of the plain report."""

from accounting.reports.report import Report
from cli.acct.page.chart import BLUE, GREEN, ORANGE, Chart, Table, label
from cli.acct.report_fields import Scale, TimeUnit, choose

HOUR_NS = 3_600 * 1_000_000_000
ACCOUNTS_MAX = 40
COLUMNS = "account,user,jobs,held,occupied,busy,efficiency,gain,slowdown,saved,jain"


def accounts(report: Report) -> Chart:
    """Accounts by occupied time, the largest first; users in the table."""
    outer = sorted(
        (row for row in report.rows if row.depth == 0), key=lambda row: row.measures.occupied_ns, reverse=True
    )[:ACCOUNTS_MAX]
    names = [label(row.account or row.user or row.cluster or "-") for row in outer]
    traces = [
        {
            "type": "bar",
            "name": name,
            "x": names,
            "y": [round(getattr(row.measures, attribute) / HOUR_NS, 4) for row in outer],
            "marker": {"color": color, "pattern": {"shape": pattern}, "line": {"width": 1, "color": color}},
        }
        for name, attribute, color, pattern in (
            ("Held", "held_ns", ORANGE, "/"),
            ("Occupied", "occupied_ns", BLUE, ""),
            ("Busy", "busy_ns", GREEN, "."),
        )
    ]
    scale = Scale(unit=TimeUnit.HOURS, total=report.total)
    chosen = choose(COLUMNS)
    rows = [[scale.text(item.field, row) for item in chosen] for row in report.rows]
    return Chart(
        key="accounts",
        title="By account",
        note="Device-hours.",
        traces=traces if outer else (),
        layout={"barmode": "group", "xaxis": {"type": "category"}, "yaxis": {"title": {"text": "device-hours"}}},
        table=Table([item.field.heading for item in chosen], rows, frozenset(range(2, len(chosen)))),
    )
