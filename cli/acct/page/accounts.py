"""Usage by account: bars of held, occupied and busy time, and a table with users."""

from accounting.reports.values import Report
from cli.acct.page.chart import BLUE, GREEN, ORANGE, Chart, ChartTable, label
from cli.acct.report_fields import Scale, parse_format
from cli.acct.report_options import TimeUnit
from nodedaemon.core.types import HOUR_NS

ACCOUNTS_MAX = 40
COLUMNS = "account,user,jobs,held,occupied,busy,efficiency,gain,slowdown,saved,jain"


def accounts(report: Report) -> Chart:
    """Accounts by occupied time, largest first."""
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
    columns = parse_format(COLUMNS)
    rows = [[scale.text(column.field, row) for column in columns] for row in report.rows]
    return Chart(
        key="accounts",
        title="By account",
        note="Device-hours per account. The table also lists the users.",
        traces=traces if outer else (),
        layout={"barmode": "group", "xaxis": {"type": "category"}, "yaxis": {"title": {"text": "device-hours"}}},
        table=ChartTable([column.field.heading for column in columns], rows, frozenset(range(2, len(columns)))),
    )
