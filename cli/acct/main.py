"""The program `salus-acct`: reports, a job's page, and maintenance of the database, in the style of sacct and sreport.

Commands import SQLAlchemy and plotly inside their functions, so that `salus-acct --help` is fast.
"""

import sys
from typing import Annotated

import typer

from accounting.reports.selection import ReportKind, Selection
from cli import entry
from cli.acct import report_options as options
from cli.acct.database import app as database
from cli.acct.job_ids import name_list, parse_jobs
from cli.acct.reconcile import reconcile
from cli.entry import ExitCode
from cli.site.config import config_of
from nodedaemon.core.errors import RequestError

app = entry.new_program("salus-acct", "Report who used the devices, what sharing gained, and what each job needed.")


@app.command()
def report(
    context: typer.Context,
    kind: options.KindArgument = ReportKind.SUMMARY,
    starttime: options.Start = "",
    endtime: options.End = "",
    user: options.Users = "",
    account: options.Accounts = "",
    partition: options.Partitions = "",
    jobs: options.Jobs = "",
    nodelist: options.Nodes = "",
    clusters: options.Clusters = "",
    allusers: options.AllUsers = False,
    allocations: options.Allocations = False,
    time: options.Time = None,
    tree: options.Tree = False,
    format_: options.Format = "",
    helpformat: options.HelpFormat = False,
    parsable2: options.Parsable2 = False,
    parsable: options.Parsable = False,
    delimiter: options.Delimiter = "|",
    noheader: options.NoHeader = False,
    json: options.Json = False,
    csv: options.Csv = False,
    units: options.MemoryUnit = None,
    noconvert: options.NoConvert = False,
    html: options.Html = None,
) -> None:
    """Print who held, occupied and used the devices. Without KIND: by account and user, with totals.

    Users see their own jobs, operators see all. SALUS_ACCT_FORMAT sets the default columns, SLURM_TIME_FORMAT the
    format of times, and NO_COLOR turns colours off. `docs/accounting.md` defines every figure.
    """
    from accounting.questions import AskReport
    from cli.acct.report import list_fields, nodes_of, print_report, window_of

    if helpformat:
        list_fields()
        return
    if allusers and user:
        raise RequestError("no report: -a and -u contradict each other; use one of them")
    start_ns, end_ns = window_of(starttime, endtime, has_jobs=bool(jobs))
    selection = Selection(
        start_utc_ns=start_ns, end_utc_ns=end_ns, users=name_list(user), accounts=name_list(account),
        partitions=name_list(partition), clusters=name_list(clusters), nodes=nodes_of(nodelist),
        jobs=tuple(parse_jobs(jobs)), is_for_all=allusers,
    )  # fmt: skip
    question = AskReport(kind=kind, selection=selection, with_sessions=not allocations, is_tree=tree)
    output = options.OutputOptions(
        time=time, format=format_, is_parsable=parsable or parsable2,
        has_trailing_delimiter=parsable and not parsable2, delimiter=delimiter, with_heading=not noheader, is_json=json,
        is_csv=csv, memory_unit=units or "", is_converted=not noconvert, html=html,
    )  # fmt: skip
    if not print_report(config_of(context), question, output):
        raise typer.Exit(ExitCode.NOT_FOUND)


@app.command()
def job(
    context: typer.Context,
    job_id: Annotated[str, typer.Argument(metavar="ID", help="123, 123_4, 123+1 or a SLUID.")],
    clusters: options.Clusters = "",
    json: options.Json = False,
    store: Annotated[
        bool, typer.Option("--store", help="Write a summary into the job's AdminComment (root or SlurmUser).")
    ] = False,
) -> None:
    """Print one page about a job: what it held and used, and advice that names the #SBATCH line to change."""
    from cli.acct.job import print_job, store_summary

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
