"""`salus-acct report`: options in, a question asked, the answer written in the form that was asked for."""

import os
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO

from accounting.reports.report import Report, ReportKind
from accounting.reports.selection import Selection
from accounting.service import AskFigures, AskReport
from cli.acct.job_ids import parse_jobs
from cli.acct.report_fields import DEFAULTS, FLAT_SUMMARY, Scale, TimeUnit, choose, help_rows
from cli.acct.report_text import Layout, write_csv, write_parsable, write_report_json, write_table
from cli.output.moments import SECOND_NS, parse_moment
from cli.output.progress import progress
from cli.remote.accounting import ask
from nodedaemon.config import Config, hostlist
from nodedaemon.core.errors import RequestError


@dataclass(frozen=True)
class Options:
    """The command line of a report, unread."""

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
    time: str | None = None
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


def print_report(config: Config, options: Options) -> bool:
    """Write the report; False if there is nothing in its window."""
    selection = read_selection(options, datetime.now().astimezone())
    # Read before asking: a typo should not cost a query.
    is_flat = options.is_parsable or options.is_csv
    default = FLAT_SUMMARY if is_flat and options.kind == "summary" else DEFAULTS[options.kind]
    chosen = choose(options.format or os.environ.get("SALUS_ACCT_FORMAT") or default)
    question = AskReport(
        kind=options.kind, selection=selection, with_sessions=not options.without_sessions, is_tree=options.is_tree
    )
    with progress("report") as tell:
        report = ask(config, question, Report, tell)
    if options.html is not None:
        write_html(config, report, selection, options.html)
        return True
    unit = TimeUnit(options.time) if options.time else (None if options.kind == "job" else TimeUnit.HOURS)
    scale = Scale(
        unit=unit,
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
        print("salus-acct: no data in this window; widen it with -S", file=sys.stderr)
    return bool(report.rows)


def list_fields() -> None:
    """-e: the fields and what they mean."""
    for name, text in help_rows():
        print(f"{name:<12} {text}")


def read_selection(options: Options, now: datetime) -> Selection:
    """Window and restrictions. As sacct: from midnight to now; with jobs named and no -S, their whole life."""
    end_ns = parse_moment(options.end, now) if options.end else int(now.timestamp() + 1) * SECOND_NS
    if options.start:
        start_ns = parse_moment(options.start, now)
    else:
        start_ns = 0 if options.jobs else parse_moment("midnight", now)
    if start_ns >= end_ns:
        raise RequestError(f"report not made: -S {options.start} -E {options.end}: it ends before it begins")
    return Selection(
        start_utc_ns=max(0, start_ns),
        end_utc_ns=end_ns,
        users=_names(options.users),
        accounts=_names(options.accounts),
        partitions=_names(options.partitions),
        clusters=_names(options.clusters),
        nodes=_nodes(options.nodes),
        jobs=tuple(parse_jobs(options.jobs)),
        is_for_all=options.is_for_all,
    )


def write_html(config: Config, report: Report, selection: Selection, path: Path) -> None:
    """Write the page with the charts and say where it is."""
    from accounting.reports.figures import Figures
    from cli.acct.page.page import write_page

    with progress("charts") as tell:
        figures = ask(config, AskFigures(selection=selection), Figures, tell)
        tell("page")
        write_page(report, figures, path)
    print(path)


def _write(report: Report, layout: Layout, options: Options, out: IO[str]) -> None:
    if options.is_json:
        write_report_json(report, sys.argv[1:], [], out)
    elif options.is_csv:
        write_csv(report, layout, out)
    elif options.is_parsable:
        write_parsable(report, layout, out)
    else:
        write_table(report, layout, out)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in (part.strip() for part in text.split(",")) if name)


def _nodes(text: str) -> tuple[str, ...]:
    if not text:
        return ()
    try:
        return hostlist.expand(text)
    except ValueError as error:
        raise RequestError(f"report not made: -N {text}: {error}; write for instance gpu[01-04]") from error
