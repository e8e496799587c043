"""Puts the page together: one file that works offline, with Plotly embedded once and no address outside itself.

Names come from users: jinja2 escapes them in the page, JSON is embedded so that it cannot end its element, and the
content policy of the page allows nothing to be fetched.
"""

import json
import os
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from accounting.reports.figures import Figures
from accounting.reports.report import Report
from cli.acct.page.accounts import accounts
from cli.acct.page.changes import changes
from cli.acct.page.chart import Chart
from cli.acct.page.definitions import DEFINITIONS
from cli.acct.page.fairness import fairness
from cli.acct.page.lanes import lanes
from cli.acct.page.memory import memory
from cli.acct.page.tiles import tiles
from cli.acct.page.timeline import timeline
from cli.acct.page.waits import waits
from cli.output.moments import format_moment
from nodedaemon.core.errors import OperatingError, RequestError

TEMPLATE = Path(__file__).with_name("page.html.j2")


def charts_of(report: Report, figures: Figures) -> list[Chart]:
    """The sections of the page, in order."""
    return [
        timeline(figures),
        lanes(figures),
        *memory(figures),
        accounts(report),
        fairness(figures),
        waits(figures),
        changes(figures),
    ]


def write_page(report: Report, figures: Figures, path: Path) -> None:
    """Write the page to `path`, whole or not at all."""
    content = page_text(report, figures)
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as draft:
            draft.write(content)
        # A report is to be passed on: as readable as any new file.
        umask = os.umask(0)
        os.umask(umask)
        Path(draft.name).chmod(0o666 & ~umask)
        Path(draft.name).replace(path)
    except OSError as error:
        raise RequestError(f"report not written: {path}: {error.strerror}; give another --html FILE") from error


def page_text(report: Report, figures: Figures) -> str:
    """The page as text."""
    from jinja2 import Environment, StrictUndefined

    # Autoescape is on for the whole template; only Plotly's own source and our JSON are marked safe in it.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    charts = charts_of(report, figures)
    return template.render(
        report=report,
        tiles=tiles(report),
        charts=charts,
        definitions=DEFINITIONS,
        window=f"{format_moment(report.start_utc_ns)} to {format_moment(report.until_utc_ns)}",
        clusters=", ".join(report.clusters) or "none",
        made=format_moment(time.time_ns()),
        version=version("salus"),
        plotly=_plotly_source(),
        drawings=embedded_json(charts),
    )


def embedded_json(charts: Sequence[Chart]) -> str:
    """What the page's script draws, with every < written as an escape: no text in it can end the element."""
    drawings = [
        {"key": chart.key, "traces": list(chart.traces), "layout": chart.layout} for chart in charts if chart.traces
    ]
    return json.dumps(drawings, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")


def _plotly_source() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise OperatingError("report not written: no plotly here; install salus[report]") from error
    source: str = get_plotlyjs()
    return source
