"""The options of `salus-acct report`: letters and words of sacct and sreport, so that habits carry over."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Kind(StrEnum):
    """What the lines of a report are."""

    SUMMARY = "summary"
    CLUSTER = "cluster"
    ACCOUNT = "account"
    USER = "user"
    DEVICE = "device"
    JOB = "job"
    PROFILE = "profile"


class Units(StrEnum):
    """Sizes of memory, as in sacct."""

    K = "K"
    M = "M"
    G = "G"
    T = "T"
    P = "P"


class Times(StrEnum):
    """sreport's words for units of time."""

    HOURS = "Hours"
    MINUTES = "Minutes"
    SECONDS = "Seconds"
    PERCENT = "Percent"
    HOUR_PER = "HourPer"
    MINUTE_PER = "MinPer"
    SECOND_PER = "SecPer"


KindArgument = Annotated[
    Kind, typer.Argument(metavar="[KIND]", show_default=False, help="cluster|account|user|device|job|profile")
]
Start = Annotated[
    str, typer.Option("--starttime", "-S", metavar="TIME", help="Begin of the window, in sacct's grammar [today].")
]
End = Annotated[
    str, typer.Option("--endtime", "-E", metavar="TIME", help="End of the window, in sacct's grammar [now].")
]
Users = Annotated[str, typer.Option("--user", "-u", metavar="LIST", help="Only these users.")]
Accounts = Annotated[str, typer.Option("--accounts", "-A", metavar="LIST", help="Only these accounts.")]
Partitions = Annotated[str, typer.Option("--partition", "-r", metavar="LIST", help="Only these partitions.")]
Jobs = Annotated[
    str, typer.Option("--jobs", "-j", metavar="LIST", help="Only these jobs; their whole life without -S.")
]
Nodes = Annotated[str, typer.Option("--nodelist", "-N", metavar="NODES", help="Only jobs on these nodes.")]
Clusters = Annotated[str, typer.Option("--clusters", "-M", metavar="LIST", help="Only these clusters.")]
AllUsers = Annotated[bool, typer.Option("--allusers", "-a", help="Everybody's jobs; operators only.")]
Allocations = Annotated[bool, typer.Option("--allocations", "-X", help="Of jobs, no lines for their sessions.")]
TimeUnit = Annotated[
    Times | None, typer.Option("--time", "-t", case_sensitive=False, help="Unit of time [Hours; job: D-HH:MM:SS].")
]
Tree = Annotated[bool, typer.Option("--tree", help="Accounts below accounts as in Slurm, users below both.")]
Format = Annotated[str, typer.Option("--format", "-o", metavar="FIELDS", help="Columns: name[%[-]width],...")]
HelpFormat = Annotated[bool, typer.Option("--helpformat", "-e", help="List the fields of --format.")]
Parsable2 = Annotated[bool, typer.Option("--parsable2", "-P", help="Columns separated by |.")]
Parsable = Annotated[bool, typer.Option("--parsable", "-p", help="The same with a | at the end.")]
Delimiter = Annotated[str, typer.Option(metavar="TEXT", help="Another separator for -P and -p.")]
NoHeader = Annotated[bool, typer.Option("--noheader", "-n", help="No heading and no notes.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON in base units.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
MemoryUnit = Annotated[Units | None, typer.Option(help="Memory in this unit.")]
NoConvert = Annotated[bool, typer.Option("--noconvert", help="Memory in MiB-hours, unscaled.")]
Html = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report with charts as one offline page.")]
