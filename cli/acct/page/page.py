"""Assembles the page: one file that works offline, with Plotly embedded and no reference to the outside.

Names come from users. Therefore jinja2 escapes them, the embedded JSON cannot end its element, and the page's content
security policy forbids it to fetch anything.
"""

import json
import os
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from accounting.reports.values import Report, ReportCharts
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


def sections_of(report: Report, charts: ReportCharts) -> list[Chart]:
    """The sections of the page, in order."""
    return [
        timeline(charts),
        lanes(charts),
        *memory(charts),
        accounts(report),
        fairness(charts),
        waits(charts),
        changes(charts),
    ]


def write_page(report: Report, charts: ReportCharts, path: Path) -> None:
    """Write the page to `path` atomically."""
    content = page_text(report, charts)
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as draft:
            draft.write(content)
        # People share reports, so give the file the mode of any new file.
        umask = os.umask(0)
        os.umask(umask)
        Path(draft.name).chmod(0o666 & ~umask)
        Path(draft.name).replace(path)
    except OSError as error:
        raise RequestError(f"report not written: {path}: {error.strerror}; choose another --html FILE") from error


def page_text(report: Report, charts: ReportCharts) -> str:
    """The HTML of the page."""
    from jinja2 import Environment, StrictUndefined

    # The whole template is autoescaped except for Plotly's source and our JSON.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    sections = sections_of(report, charts)
    return template.render(
        report=report,
        tiles=tiles(report),
        charts=sections,
        definitions=DEFINITIONS,
        window=f"{format_moment(report.start_utc_ns)} to {format_moment(report.until_utc_ns)}",
        clusters=", ".join(report.clusters) or "none",
        created=format_moment(time.time_ns()),
        version=version("salus"),
        plotly=_plotly_source(),
        drawings=embedded_json(sections),
    )


def embedded_json(charts: Sequence[Chart]) -> str:
    """The charts as JSON, with every < escaped so that no text can end the element."""
    drawings = [
        {"key": chart.key, "traces": list(chart.traces), "layout": chart.layout} for chart in charts if chart.traces
    ]
    return json.dumps(drawings, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")


def _plotly_source() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise OperatingError("report not written: plotly is not installed; install salus[report]") from error
    source: str = get_plotlyjs()
    return source
