"""Formats a report: a table with footnotes, -P and -p, CSV, and JSON with a versioned schema."""

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import IO, Any

import msgspec

from accounting.reports.measures import Measures
from accounting.reports.values import Report, ReportRow
from cli.acct.report_fields import ReportColumn, Scale
from cli.acct.report_options import OutputOptions
from cli.output.moments import format_duration, format_moment
from cli.output.render import write_json
from nodedaemon.wire.text import visible

# Incremented when a name in --json is removed or changes its meaning.
JSON_SCHEMA = 1
DERIVED = tuple(name for name, value in vars(Measures).items() if isinstance(value, property))


@dataclass(frozen=True)
class Layout:
    """The rows and columns to write, and how they are formatted."""

    columns: Sequence[ReportColumn]
    scale: Scale
    options: OutputOptions
    rows: Sequence[ReportRow]


def write_parsable(layout: Layout, out: IO[str]) -> None:
    """-P: never truncated, coloured or aligned. A name that contains the delimiter cannot add a column."""
    delimiter = layout.options.delimiter
    end = delimiter if layout.options.has_trailing_delimiter else ""
    if layout.options.with_heading:
        print(delimiter.join(column.field.heading for column in layout.columns) + end, file=out)
    for row in layout.rows:
        print(delimiter.join(_flat(cell, delimiter) for cell in _cells(row, layout)) + end, file=out)


def write_csv(layout: Layout, out: IO[str]) -> None:
    """--csv: quoted according to RFC 4180."""
    writer = csv.writer(out, lineterminator="\n")
    if layout.options.with_heading:
        writer.writerow([column.field.heading for column in layout.columns])
    writer.writerows(_cells(row, layout) for row in layout.rows)


def write_report_json(report: Report, command: Sequence[str], out: IO[str]) -> None:
    """--json: `meta` and `data`, with numbers in base units (ns, MiB-ms) and null for unknown values."""
    data = msgspec.to_builtins(report)
    for line, row in zip(data["rows"], report.rows, strict=True):
        line["measures"] |= derived(row.measures)
    data["total"] |= derived(report.total)
    meta = {"schema": JSON_SCHEMA, "version": version("salus"), "command": list(command), "warnings": []}
    write_json({"meta": meta, "data": data}, stream=out)


def derived(measures: Measures) -> dict[str, Any]:
    """The ratios of a row, which are transferred as sums."""
    return {name: getattr(measures, name) for name in DERIVED}


def write_table(report: Report, layout: Layout, out: IO[str]) -> None:
    """The table, with totals and notes."""
    is_bold = out.isatty() and not os.environ.get("NO_COLOR")
    style = layout.scale.moment_style
    if layout.options.with_heading:
        window = f"{format_moment(report.start_utc_ns, style)} .. {format_moment(report.end_utc_ns, style)}"
        clusters = visible(",".join(report.clusters)) or "-"
        unit = f"   time in {layout.scale.unit}" if layout.scale.unit else ""
        print(f"Salus report  cluster={clusters}  {window}   devices: {report.summary.device_count}{unit}", file=out)
        heading = "  ".join(_pad(column.field.heading, column) for column in layout.columns).rstrip()
        print(f"\x1b[1m{heading}\x1b[0m" if is_bold else heading, file=out)
    for row, stem in zip(layout.rows, stems([row.depth for row in layout.rows]), strict=True):
        print(_line(row, layout, stem), file=out)
    if report.kind != "job" and len(layout.rows) > 1:
        print(_line(_total_row(report, layout), layout, ""), file=out)
    if layout.options.with_heading:
        _write_notes(report, out)


def _write_notes(report: Report, out: IO[str]) -> None:
    total, summary = report.total, report.summary
    if report.kind in ("summary", "account", "user"):
        print("Occupied: each device-second counts once, divided among the jobs that were present.", file=out)
    if total.usage_count and total.known_count < total.usage_count:
        unknown = 1 - total.known_count / total.usage_count
        print(f"Gain, slowdown and alone exclude {unknown:.0%} of the usage: solo iteration time unknown.", file=out)
    if report.kind != "summary":
        return
    refused, waited = summary.refused_count, summary.made_to_wait_count
    parts = [f"Avoided: {refused + waited} OOM ({refused} refused at submit, {waited} made to wait)."]
    if summary.wait_median_ns is not None and summary.wait_p95_ns is not None:
        median, p95 = (format_duration(wait_ns) for wait_ns in (summary.wait_median_ns, summary.wait_p95_ns))
        parts.append(f"Waits: median {median}, p95 {p95}.")
    parts.append(f"{summary.profile_change_count} profile changes.")
    if events := ", ".join(f"{count} {kind}" for kind, count in sorted(summary.event_counts.items())):
        parts.append(f"Events: {events}.")
    print("  ".join(parts), file=out)


def _cells(row: ReportRow, layout: Layout) -> list[str]:
    return [visible(layout.scale.text(column.field, row)) for column in layout.columns]


def stems(depths: Sequence[int]) -> list[str]:
    """The tree prefix of each line, computed from the depths: the branches that pass it, and its own branch."""
    drawn: list[str] = []
    continuing: set[int] = set()
    # Bottom up: a branch continues if a later line has its depth before any line with a smaller one.
    for depth in reversed(depths):
        own = ("├ " if depth in continuing else "└ ") if depth else ""
        passed = "".join("│ " if level in continuing else "  " for level in range(1, depth))
        drawn.append(f" {passed}{own}" if depth else "")
        continuing = {level for level in continuing if level < depth} | {depth}
    return drawn[::-1]


def _line(row: ReportRow, layout: Layout, stem: str) -> str:
    cells = _cells(row, layout)
    if row.depth and not row.job:
        # The first column names the member of the group: a user of an account, or an account of a user.
        is_by_account = layout.columns[0].field.name == "account"
        cells[0] = stem + visible((row.user or row.account) if is_by_account else row.account)
    return "  ".join(_pad(cell, column) for cell, column in zip(cells, layout.columns, strict=True)).rstrip()


def _total_row(report: Report, layout: Layout) -> ReportRow:
    names = ("cluster", "account", "user", "node", "signature")
    first = layout.columns[0].field.name
    total = ReportRow(measures=report.total)
    return msgspec.structs.replace(total, **{first: "Total"}) if first in names else total


def _pad(text: str, column: ReportColumn) -> str:
    from rich.cells import cell_len, set_cell_size

    length = cell_len(text)
    if length > column.width:
        # As in sacct, a long name is truncated and marked with a plus. A number is never truncated.
        if column.field.nature != "text":
            return text
        return set_cell_size(text, column.width - 1) + "+"
    return text + " " * (column.width - length) if column.is_left else " " * (column.width - length) + text


def _flat(cell: str, delimiter: str) -> str:
    return cell.replace(delimiter, "/" if delimiter == "|" else " ")
