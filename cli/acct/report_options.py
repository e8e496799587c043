"""The options of `salus-acct report`, named as in sacct and sreport."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from accounting.reports.selection import ReportKind


class TimeUnit(StrEnum):
    """Units of device time, with the names of sreport."""

    HOURS = "Hours"
    MINUTES = "Minutes"
    SECONDS = "Seconds"
    PERCENT = "Percent"
    HOUR_PER = "HourPer"
    MINUTE_PER = "MinPer"
    SECOND_PER = "SecPer"


KindArgument = Annotated[
    ReportKind,
    typer.Argument(metavar="KIND", show_default=False, help="One of cluster, account, user, device, job, profile."),
]
Start = Annotated[
    str,
    typer.Option(
        "--starttime", "-S", metavar="TIME", help="Start of the window, in the format of sacct. Default: today."
    ),
]
End = Annotated[
    str,
    typer.Option("--endtime", "-E", metavar="TIME", help="End of the window, in the format of sacct. Default: now."),
]
Users = Annotated[str, typer.Option("--user", "-u", metavar="LIST", help="Only these users.")]
Accounts = Annotated[str, typer.Option("--accounts", "-A", metavar="LIST", help="Only these accounts.")]
Partitions = Annotated[str, typer.Option("--partition", "-r", metavar="LIST", help="Only these partitions.")]
Jobs = Annotated[
    str, typer.Option("--jobs", "-j", metavar="LIST", help="Only these jobs. Without -S, their whole run counts.")
]
Nodes = Annotated[str, typer.Option("--nodelist", "-N", metavar="NODES", help="Only jobs on these nodes.")]
Clusters = Annotated[str, typer.Option("--clusters", "-M", metavar="LIST", help="Only these clusters.")]
AllUsers = Annotated[bool, typer.Option("--allusers", "-a", help="Jobs of all users (operators only).")]
Allocations = Annotated[bool, typer.Option("--allocations", "-X", help="With KIND job, print no lines for sessions.")]
Time = Annotated[
    TimeUnit | None,
    typer.Option("--time", "-t", case_sensitive=False, help="Unit of time. Default: Hours; for job, D-HH:MM:SS."),
]
Tree = Annotated[bool, typer.Option("--tree", help="Nest accounts as in Slurm, with users below their accounts.")]
Format = Annotated[str, typer.Option("--format", "-o", metavar="FIELDS", help="Columns: name[%[-]width],...")]
HelpFormat = Annotated[bool, typer.Option("--helpformat", "-e", help="List the fields of --format.")]
Parsable2 = Annotated[bool, typer.Option("--parsable2", "-P", help="Columns separated by |.")]
Parsable = Annotated[bool, typer.Option("--parsable", "-p", help="Like -P, with a | at the end of each line.")]
Delimiter = Annotated[str, typer.Option(metavar="TEXT", help="Separator for -P and -p.")]
NoHeader = Annotated[bool, typer.Option("--noheader", "-n", help="Print no heading and no notes.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON in base units.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
MemoryUnit = Annotated[Literal["K", "M", "G", "T", "P"] | None, typer.Option(help="Unit of memory.")]
NoConvert = Annotated[bool, typer.Option("--noconvert", help="Print memory in MiB-hours.")]
Html = Annotated[Path | None, typer.Option(metavar="FILE", help="Write an HTML page with charts that works offline.")]


@dataclass(frozen=True)
class OutputOptions:
    """How a report is written."""

    time: TimeUnit | None = None
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
