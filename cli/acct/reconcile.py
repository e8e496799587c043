"""`salus-acct reconcile`: compares the jobs in the database with those of Slurm. Sites run it from a timer."""

import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.entry import ExitCode
from cli.output.moments import parse_moment
from cli.output.render import Json, write_json
from cli.output.units import counted
from cli.remote.accounting import opened
from cli.site.config import config_of
from nodedaemon.core.errors import RequestError
from nodedaemon.wire.text import visible

if TYPE_CHECKING:
    from accounting.ingest.reconcile import Reconciled


def reconcile(
    context: typer.Context,
    starttime: Annotated[
        str, typer.Option("--starttime", "-S", metavar="TIME", help="Start of the window, in the format of sacct.")
    ] = "now-1day",
    endtime: Annotated[str, typer.Option("--endtime", "-E", metavar="TIME", help="End of the window.")] = "now",
    from_sacct: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Read the output of sacct -D -X -P from FILE, or from standard input if FILE is -."
        ),
    ] = None,
    tolerance: Annotated[int, typer.Option(min=0, metavar="SECONDS", help="Do not report smaller differences.")] = 2,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only compare; exit code 1 if anything differs.")] = False,
    json: Json = False,
) -> None:
    """Compare the jobs in the database with sacct, add missing ones, adopt Slurm's times, and report differences."""
    from accounting.ingest import reconcile as comparison
    from accounting.ingest.ledger import LedgerWriter
    from slurm_plugin.slurm import sacct

    config = config_of(context)
    now = datetime.now().astimezone()
    window = (parse_moment(starttime, now), parse_moment(endtime, now))
    cluster, now_utc_ns = config.settings.cluster.name, time.time_ns()
    commands = sacct.accounting_commands(config.settings.slurm)
    table = (
        comparison.read_sacct(_read(from_sacct), cluster=cluster)
        if from_sacct is not None
        else sacct.read_runs(commands, window, cluster=cluster)
    )
    stored = sacct.StoredSummaries()
    with opened(config) as database:
        found = comparison.reconcile(database, table.rows, window=window, tolerance_s=tolerance, is_dry=dry_run)
        if not dry_run and from_sacct is None:
            LedgerWriter(database).write(sacct.read_accounts(commands, now_utc_ns=now_utc_ns))
            stored = sacct.store_summaries(commands, config, database, table.rows, now_utc_ns=now_utc_ns)
    skipped_count = table.bad_count + len(found.skipped)
    if skipped_count:
        print(f"salus-acct: {counted(skipped_count, 'row')} of sacct skipped: not readable", file=sys.stderr)
    for failure in stored.failures:
        print(f"salus-acct: summary not stored: {visible(failure)}", file=sys.stderr)
    if json:
        write_json({**_as_json(found, stored.count), "skipped": skipped_count})
    else:
        _print(found, "missing" if dry_run else "added", stored.count)
    if dry_run and (found.filled or found.disagreements or found.unknown):
        raise typer.Exit(ExitCode.FAILED)


def _as_json(found: "Reconciled", summary_count: int) -> dict[str, object]:
    return {
        "compared": found.compared_count,
        "filled": [key.job_id for key in found.filled],
        "disagreements": [
            {"job": d.job.job_id, "restart": d.job.restart_count, "what": d.what, "ours": d.ours, "slurm": d.slurms}
            for d in found.disagreements
        ],
        "unknown": [key.job_id for key in found.unknown],
        "summaries": summary_count,
    }


def _print(found: "Reconciled", verb: str, summary_count: int) -> None:
    print(
        f"{found.compared_count} runs compared, {len(found.filled)} {verb}, {len(found.disagreements)} "
        f"differences, {len(found.unknown)} unknown to sacct, {summary_count} summaries stored"
    )
    for d in found.disagreements:
        difference = visible(f"{d.what}: {d.ours} in Salus, {d.slurms} in Slurm")
        print(f"  job {d.job.job_id} restart {d.job.restart_count}: {difference}")
    for key in found.unknown:
        print(f"  job {key.job_id} restart {key.restart_count}: sacct has no such run")


def _read(path: Path) -> str:
    try:
        # As bytes: text mode would turn a carriage return in a job's name into a newline.
        content = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise RequestError(f"cannot read sacct output: {path}: {error.strerror}") from error
    return content.decode(errors="replace")
