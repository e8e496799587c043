"""The HTML report in a real Chromium: it loads without network, draws every chart and logs nothing."""

import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from accounting.ingest.ledger import LedgerWriter
from accounting.records import JobRecord
from accounting.reports.bins import BINS_MAX
from accounting.reports.charts import make_charts
from accounting.reports.report import make_report
from accounting.reports.selection import Selection
from accounting.reports.values import Report, ReportCharts
from accounting.storage import schema
from accounting.storage.database import open_database
from accounting.viewer import Viewer
from cli.acct.page.definitions import DEFINITIONS
from cli.acct.page.page import page_text, sections_of, write_page
from tests.support.browser import Browser, browser
from tests.support.lab import wait_for
from tests.support.scenario import END, T0, S, records

ROOT = Viewer(uid=0, user="root", is_operator=True)
DAY = Selection(start_utc_ns=T0 - 86_400 * S, end_utc_ns=END)
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>"

# The elements that Plotly draws for each chart.
MARKS = {
    "timeline": "path.js-line",
    "lanes": ".bars .point path",
    "memory": "path.js-fill",
    "accounts": ".bars .point path",
    "fairness": "path.js-line",
    "waits": ".bars .point path",
    "changes": "path.point",
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, ReportCharts]:
    database = open_database(f"sqlite:///{tmp_path_factory.mktemp('page')}/salus.db")
    schema.upgrade(database)
    made = records()
    writer = LedgerWriter(database)
    writer.write(made)
    job = next(record for record in made if isinstance(record, JobRecord) and record.end_utc_ns is not None)
    writer.write([msgspec.structs.replace(job, user=HOSTILE[:100], account=HOSTILE[:100], name=HOSTILE)])
    report = make_report(database, ROOT, "summary", DAY, now_utc_ns=END)
    figures = make_charts(database, ROOT, DAY, now_utc_ns=END)
    database.close()
    return report, figures


@pytest.fixture(scope="module")
def page(models: tuple[Report, ReportCharts], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(*models, path)
    return path


@pytest.fixture(scope="module")
def opened(page: Path) -> Iterator[Browser]:
    with browser() as shown:
        shown.open(page.as_uri())
        yield shown


def test_the_page_loads_completely_without_console_messages(opened: Browser, page: Path) -> None:
    assert opened.run("return document.readyState") == "complete"
    assert opened.console() == []
    # Chromium requests chrome: addresses for its own first tab.
    addresses = [url for url in opened.requested() if not url.startswith(("data:", "blob:", "chrome"))]
    assert addresses == [page.as_uri()]
    assert opened.run("return performance.getEntriesByType('resource').length") == 0


@pytest.mark.parametrize(("chart", "mark"), MARKS.items())
def test_every_chart_has_marks_and_a_table(opened: Browser, chart: str, mark: str) -> None:
    assert opened.run(f"return document.querySelectorAll('#{chart} {mark}').length") > 0
    assert opened.run(f"return document.querySelectorAll('#section-{chart} tbody tr').length") > 0


def test_user_names_are_shown_as_text(opened: Browser) -> None:
    assert opened.run("return document.title").startswith("Salus report")
    assert opened.run("return document.images.length") == 0
    assert HOSTILE[:60] in opened.run("return document.getElementById('section-accounts').textContent")


def test_the_tiles_have_the_reports_figures(opened: Browser) -> None:
    tiles = opened.run("return [...document.querySelectorAll('.tile')].map(tile => tile.textContent)")
    assert any(tile.startswith("Held2.19 h") for tile in tiles)
    assert len(opened.run("return [...document.querySelectorAll('dt')].map(e => e.textContent)")) == len(DEFINITIONS)


@pytest.mark.parametrize(("scheme", "ground"), [("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 23, 26)")])
def test_the_page_is_not_blank_and_follows_the_colour_scheme(opened: Browser, scheme: str, ground: str) -> None:
    opened.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    assert opened.run("return getComputedStyle(document.body).backgroundColor") == ground
    ink = "rgb(26, 26, 26)" if scheme == "light" else "rgb(236, 236, 236)"
    # The page redraws when an event reports the new scheme.
    drawn = "return document.querySelector('#timeline .xtick text').style.fill"
    wait_for(lambda: opened.run(drawn) == ink, lambda: f"{ink}, is {opened.run(drawn)}")
    picture = opened.picture()
    width, height = struct.unpack(">II", picture[16:24])
    assert width > 1000
    assert height > 1000
    # A blank page of this size is some 10 kB.
    assert len(picture) > 50_000
    assert opened.console() == []


def test_the_page_prints_with_every_table_open(opened: Browser) -> None:
    opened.run("window.dispatchEvent(new Event('beforeprint'))")
    assert opened.run("return [...document.querySelectorAll('details')].every(details => details.open)")
    assert len(opened.command("Page.printToPDF")["data"]) > 50_000
    assert opened.console() == []


def test_the_page_names_no_other_host_and_embeds_plotly_once(models: tuple[Report, ReportCharts]) -> None:
    text = page_text(*models)
    assert text.count("Content-Security-Policy") == 1
    own = text.partition("<script>")[0] + text.rpartition("<script>")[2]
    assert "http" not in own.replace("http-equiv", "")
    assert text.count("plotly.js v") == 1


def test_the_number_of_points_is_limited(models: tuple[Report, ReportCharts]) -> None:
    report, figures = models
    assert len(figures.bins) <= BINS_MAX
    many = msgspec.structs.replace(figures, waits=figures.waits * 500)
    waits = next(chart for chart in sections_of(report, many) if chart.key == "waits")
    assert len(waits.table.shown) == 1000
    assert waits.table.cut_count == len(many.waits) - 1000


def test_an_empty_period_says_so(models: tuple[Report, ReportCharts]) -> None:
    report, figures = models
    empty = msgspec.structs.replace(figures, bins=[], memory=[], spans=[], marks=[], waits=[], changes=[])
    bare = msgspec.structs.replace(report, rows=[])
    assert page_text(bare, empty).count("There is no data for this chart") == 7
