"""`salus-acct report`: asks for the report and writes it in the selected format."""

import os
import sys
from datetime import datetime
from pathlib import Path

from accounting.questions import AskFigures, AskReport
from accounting.reports.selection import ReportKind, Selection
from accounting.reports.values import Report
from cli.acct.report_fields import DEFAULTS, FIELDS, FLAT_SUMMARY, Scale, parse_format
from cli.acct.report_options import OutputOptions, TimeUnit
from cli.acct.report_text import Layout, write_csv, write_parsable, write_report_json, write_table
from cli.output.moments import format_moment, parse_moment
from cli.output.progress import progress
from cli.remote.accounting import ask
from nodedaemon.config import Config, hostlist
from nodedaemon.core.errors import RequestError
from nodedaemon.core.types import SECOND_NS


def print_report(config: Config, question: AskReport, options: OutputOptions) -> bool:
    """Write the report; False if its window is empty."""
    kind = question.kind
    # Parse the format before the query runs: a typo should be reported at once.
    is_flat = options.is_parsable or options.is_csv
    default = FLAT_SUMMARY if is_flat and kind is ReportKind.SUMMARY else DEFAULTS[kind]
    columns = parse_format(options.format or os.environ.get("SALUS_ACCT_FORMAT") or default)
    with progress("report") as on_step:
        report = ask(config, question, Report, on_step)
    if options.html is not None:
        write_html(config, report, question.selection, options.html)
        return True
    scale = Scale(
        unit=options.time or (None if kind is ReportKind.JOB else TimeUnit.HOURS),
        total=report.total,
        memory_unit=options.memory_unit,
        is_converted=options.is_converted,
        moment_style=os.environ.get("SLURM_TIME_FORMAT", "standard"),
    )
    # The summary and the job list always show the members of a group; other reports only with --tree.
    with_members = question.is_tree or kind in (ReportKind.SUMMARY, ReportKind.JOB)
    layout = Layout(columns, scale, options, [row for row in report.rows if row.depth == 0 or with_members])
    if options.is_json:
        write_report_json(report, sys.argv[1:], sys.stdout)
    elif options.is_csv:
        write_csv(layout, sys.stdout)
    elif options.is_parsable:
        write_parsable(layout, sys.stdout)
    else:
        write_table(report, layout, sys.stdout)
    if not report.rows:
        print("salus-acct: no data in this window; use -S to start earlier", file=sys.stderr)
    return bool(report.rows)


def list_fields() -> None:
    """Print the fields of --format and what they mean."""
    for field in FIELDS:
        print(f"{field.name:<12} {field.help}")


def window_of(start: str, end: str, *, has_jobs: bool) -> tuple[int, int]:
    """The window that -S and -E select. As in sacct: from midnight until now; with -j, from the beginning."""
    now = datetime.now().astimezone()
    end_ns = parse_moment(end, now) if end else int(now.timestamp() + 1) * SECOND_NS
    start_ns = 0 if has_jobs and not start else parse_moment(start or "midnight", now)
    if start_ns >= end_ns:
        shown = " to ".join(format_moment(moment_ns) for moment_ns in (start_ns, end_ns))
        raise RequestError(f"no report: {shown}: the window ends before it begins; change -S or -E")
    return max(0, start_ns), end_ns


def nodes_of(text: str) -> tuple[str, ...]:
    """The nodes that -N selects."""
    try:
        return hostlist.expand(text) if text else ()
    except ValueError as error:
        raise RequestError(f"no report: -N {text}: {error}; use a form such as gpu[01-04]") from error


def write_html(config: Config, report: Report, selection: Selection, path: Path) -> None:
    """Write the HTML page and print its path."""
    from accounting.reports.values import ReportCharts
    from cli.acct.page.page import write_page

    with progress("charts") as on_step:
        charts = ask(config, AskFigures(selection=selection), ReportCharts, on_step)
        on_step("page")
        write_page(report, charts, path)
    print(path)
