"""`salus-acct report`: parses the options, requests the report, and writes it in the selected format."""

import os
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO

from accounting.questions import AskFigures, AskReport
from accounting.reports.report import Report
from accounting.reports.selection import ReportKind, Selection
from cli.acct.job_ids import name_list, parse_jobs
from cli.acct.report_fields import DEFAULTS, FIELDS, FLAT_SUMMARY, Scale, choose
from cli.acct.report_options import TimeUnit
from cli.acct.report_text import Layout, write_csv, write_parsable, write_report_json, write_table
from cli.output.moments import SECOND_NS, parse_moment
from cli.output.progress import progress
from cli.remote.accounting import ask
from nodedaemon.config import Config, hostlist
from nodedaemon.core.errors import RequestError


@dataclass(frozen=True)
class ReportOptions:
    """The options of a report as typed."""

    kind: ReportKind
    start: str = ""
    end: str = ""
    users: str = ""
    accounts: str = ""
    partitions: str = ""
    jobs: str = ""
    nodes: str = ""
    clusters: str = ""
    is_for_all: bool = False
    without_sessions: bool = False
    time: TimeUnit | None = None
    is_tree: bool = False
    format: str = ""
    is_parsable: bool = False
    has_trailing_delimiter: bool = False
    delimiter: str = "|"
    with_heading: bool = True
    is_json: bool = False
    is_csv: bool = False
    memory_unit: str = ""
    is_converted: bool = True
    html: Path | None = None


def print_report(config: Config, options: ReportOptions) -> bool:
    """Write the report; False if its window is empty."""
    selection = read_selection(options, datetime.now().astimezone())
    # Parse the format before the query runs: a typing error should be reported at once.
    is_flat = options.is_parsable or options.is_csv
    default = FLAT_SUMMARY if is_flat and options.kind is ReportKind.SUMMARY else DEFAULTS[options.kind]
    chosen = choose(options.format or os.environ.get("SALUS_ACCT_FORMAT") or default)
    question = AskReport(
        kind=options.kind, selection=selection, with_sessions=not options.without_sessions, is_tree=options.is_tree
    )
    with progress("report") as on_step:
        report = ask(config, question, Report, on_step)
    if options.html is not None:
        write_html(config, report, selection, options.html)
        return True
    scale = Scale(
        unit=options.time or (None if options.kind is ReportKind.JOB else TimeUnit.HOURS),
        total=report.total,
        memory_unit=options.memory_unit,
        is_converted=options.is_converted,
        moment_style=os.environ.get("SLURM_TIME_FORMAT", "standard"),
    )
    layout = Layout(
        chosen=chosen,
        scale=scale,
        with_heading=options.with_heading,
        is_tree=options.is_tree,
        delimiter=options.delimiter,
        has_trailing_delimiter=options.has_trailing_delimiter,
    )
    _write(report, layout, options, sys.stdout)
    if not report.rows:
        print("salus-acct: no data in this window; use -S to start earlier", file=sys.stderr)
    return bool(report.rows)


def list_fields() -> None:
    """Print the fields of --format and what they mean."""
    for field in FIELDS:
        print(f"{field.name:<12} {field.help}")


def read_selection(options: ReportOptions, now: datetime) -> Selection:
    """The window and the restrictions. As in sacct: from midnight to now; with -j and no -S, from the beginning."""
    end_ns = parse_moment(options.end, now) if options.end else int(now.timestamp() + 1) * SECOND_NS
    if options.start:
        start_ns = parse_moment(options.start, now)
    else:
        start_ns = 0 if options.jobs else parse_moment("midnight", now)
    if start_ns >= end_ns:
        raise RequestError(f"no report: -S {options.start} -E {options.end}: the window ends before it begins")
    return Selection(
        start_utc_ns=max(0, start_ns),
        end_utc_ns=end_ns,
        users=name_list(options.users),
        accounts=name_list(options.accounts),
        partitions=name_list(options.partitions),
        clusters=name_list(options.clusters),
        nodes=_nodes(options.nodes),
        jobs=tuple(parse_jobs(options.jobs)),
        is_for_all=options.is_for_all,
    )


def write_html(config: Config, report: Report, selection: Selection, path: Path) -> None:
    """Write the HTML page and print its path."""
    from accounting.reports.charts import ReportCharts
    from cli.acct.page.page import write_page

    with progress("charts") as on_step:
        charts = ask(config, AskFigures(selection=selection), ReportCharts, on_step)
        on_step("page")
        write_page(report, charts, path)
    print(path)


def _write(report: Report, layout: Layout, options: ReportOptions, out: IO[str]) -> None:
    if options.is_json:
        write_report_json(report, sys.argv[1:], [], out)
    elif options.is_csv:
        write_csv(report, layout, out)
    elif options.is_parsable:
        write_parsable(report, layout, out)
    else:
        write_table(report, layout, out)


def _nodes(text: str) -> tuple[str, ...]:
    if not text:
        return ()
    try:
        return hostlist.expand(text)
    except ValueError as error:
        raise RequestError(f"no report: -N {text}: {error}; use a form such as gpu[01-04]") from error
