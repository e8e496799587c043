"""The program `salus-acct`: reports, one job's page, and care of the database, with the habits of sacct and sreport.

Whatever needs SQLAlchemy or plotly is imported inside its command, so that `salus-acct --help` answers at once.
"""

import sys
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from cli import entry
from cli.acctdb import app as database
from cli.config import config_of
from cli.entry import ExitCode
from cli.reconcile import reconcile
from nodedaemon.core.errors import RequestError

app = typer.Typer(
    name="salus-acct",
    help="Who used the devices, what sharing gained, and what each job needed.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"salus-acct {version('salus')}")
        raise typer.Exit


@app.callback()
def _program(
    context: typer.Context,
    config_file: Annotated[
        Path | None,
        typer.Option("--config-file", "-f", metavar="FILE", help="Configuration file; SALUS_CONF comes second."),
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    # Commands read it through `cli.config.config_of(context)`.
    context.obj = config_file


@app.command()
def report(
    context: typer.Context,
    kind: Annotated[
        Kind, typer.Argument(metavar="[KIND]", show_default=False, help="cluster|account|user|device|job|profile")
    ] = Kind.SUMMARY,
    starttime: Annotated[
        str, typer.Option("--starttime", "-S", metavar="TIME", help="Begin of the window, in sacct's grammar [today].")
    ] = "",
    endtime: Annotated[
        str, typer.Option("--endtime", "-E", metavar="TIME", help="End of the window, in sacct's grammar [now].")
    ] = "",
    user: Annotated[str, typer.Option("--user", "-u", metavar="LIST", help="Only these users.")] = "",
    account: Annotated[str, typer.Option("--accounts", "-A", metavar="LIST", help="Only these accounts.")] = "",
    partition: Annotated[str, typer.Option("--partition", "-r", metavar="LIST", help="Only these partitions.")] = "",
    jobs: Annotated[
        str, typer.Option("--jobs", "-j", metavar="LIST", help="Only these jobs; their whole life without -S.")
    ] = "",
    nodelist: Annotated[str, typer.Option("--nodelist", "-N", metavar="NODES", help="Only jobs on these nodes.")] = "",
    clusters: Annotated[str, typer.Option("--clusters", "-M", metavar="LIST", help="Only these clusters.")] = "",
    allusers: Annotated[bool, typer.Option("--allusers", "-a", help="Everybody's jobs; operators only.")] = False,
    allocations: Annotated[
        bool, typer.Option("--allocations", "-X", help="Of jobs, no lines for their sessions.")
    ] = False,
    time: Annotated[
        Times | None, typer.Option("--time", "-t", case_sensitive=False, help="Unit of time [Hours; job: D-HH:MM:SS].")
    ] = None,
    tree: Annotated[bool, typer.Option("--tree", help="Users below accounts, or accounts below users.")] = False,
    format_: Annotated[
        str, typer.Option("--format", "-o", metavar="FIELDS", help="Columns: name[%[-]width],... ")
    ] = "",
    helpformat: Annotated[bool, typer.Option("--helpformat", "-e", help="List the fields of --format.")] = False,
    parsable2: Annotated[bool, typer.Option("--parsable2", "-P", help="Columns separated by |.")] = False,
    parsable: Annotated[bool, typer.Option("--parsable", "-p", help="The same with a | at the end.")] = False,
    delimiter: Annotated[str, typer.Option(metavar="TEXT", help="Another separator for -P and -p.")] = "|",
    noheader: Annotated[bool, typer.Option("--noheader", "-n", help="No heading and no notes.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON in base units.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    units: Annotated[Units | None, typer.Option(help="Memory in this unit.")] = None,
    noconvert: Annotated[bool, typer.Option("--noconvert", help="Memory in MiB-hours, unscaled.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report with charts as one offline page.")
    ] = None,
) -> None:
    """Print who held, occupied and used the devices; without KIND by account and user, with totals.

    Users see their own jobs, operators all. The columns can also be set by SALUS_ACCT_FORMAT, times by
    SLURM_TIME_FORMAT; NO_COLOR is honoured. `docs/accounting.md` defines every figure.
    """
    from cli.reporting import Options, list_fields, print_report

    if helpformat:
        list_fields()
        return
    if allusers and user:
        raise RequestError("report not made: -a and -u: they contradict each other; give one")
    options = Options(
        kind=kind.value,
        start=starttime,
        end=endtime,
        users=user,
        accounts=account,
        partitions=partition,
        jobs=jobs,
        nodes=nodelist,
        clusters=clusters,
        is_for_all=allusers,
        without_sessions=allocations,
        time=time.value if time else None,
        is_tree=tree,
        format=format_,
        is_parsable=parsable or parsable2,
        has_trailing_delimiter=parsable and not parsable2,
        delimiter=delimiter,
        with_heading=not noheader,
        is_json=json,
        is_csv=csv,
        memory_unit=units.value if units else "",
        is_converted=not noconvert,
        html=html,
    )
    if not print_report(config_of(context), options):
        raise typer.Exit(ExitCode.NOT_FOUND)


@app.command()
def job(
    context: typer.Context,
    job_id: Annotated[str, typer.Argument(metavar="ID", help="123, 123_4, 123+1 or a SLUID.")],
    clusters: Annotated[str, typer.Option("--clusters", "-M", metavar="LIST", help="Only these clusters.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON in base units.")] = False,
    store: Annotated[
        bool, typer.Option("--store", help="Merge a summary into the job's AdminComment (root or SlurmUser).")
    ] = False,
) -> None:
    """Print one page about a job: what it held and used, bars, and notes that name the #SBATCH line to change."""
    from cli.jobprint import print_job, store_summary

    config = config_of(context)
    pages = print_job(config, job_id, clusters, is_json=json)
    if store:
        store_summary(config, pages)


app.add_typer(database, name="db")
app.command()(reconcile)


def main() -> None:
    """Console script `salus-acct`."""
    sys.exit(entry.run(app, "salus-acct"))


if __name__ == "__main__":
    main()
