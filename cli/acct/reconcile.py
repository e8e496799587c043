"""`salus-acct reconcile`: our book beside Slurm's. For a timer: says nothing new when both agree."""

import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.entry import ExitCode
from cli.output.moments import parse_moment
from cli.output.render import write_json
from cli.remote.accounting import opened
from cli.site.config import config_of
from nodedaemon.core.errors import RequestError

if TYPE_CHECKING:
    from accounting.ingest.reconcile import Reconciled


def reconcile(
    context: typer.Context,
    starttime: Annotated[
        str, typer.Option("--starttime", "-S", metavar="TIME", help="Jobs from then on, in sacct's grammar.")
    ] = "now-1day",
    endtime: Annotated[str, typer.Option("--endtime", "-E", metavar="TIME", help="Jobs until then.")] = "now",
    from_sacct: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A table of sacct -D -X -P instead of running sacct; - reads from stdin."),
    ] = None,
    tolerance: Annotated[int, typer.Option(min=0, metavar="SECONDS", help="A smaller difference is not told.")] = 2,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Compare only; exit code 1 if anything differs.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare our jobs with sacct, fill what is missing, take over Slurm's times, and report what disagrees."""
    from accounting.ingest import reconcile as books
    from accounting.ingest.ledger import LedgerWriter
    from slurm_plugin.slurm import sacct

    config = config_of(context)
    now = datetime.now().astimezone()
    window = (parse_moment(starttime, now), parse_moment(endtime, now))
    cluster, now_utc_ns = config.settings.cluster.name, time.time_ns()
    commands = sacct.accounting_commands(config.settings.slurm)
    rows = (
        books.read_sacct(_read(from_sacct), cluster=cluster)
        if from_sacct is not None
        else sacct.read_runs(commands, window, cluster=cluster)
    )
    stored = sacct.Stored()
    with opened(config) as database:
        found = books.reconcile(database, rows, window=window, tolerance_s=tolerance, is_dry=dry_run)
        if not dry_run and from_sacct is None:
            LedgerWriter(database).write(sacct.read_accounts(commands, now_utc_ns=now_utc_ns))
            stored = sacct.store_summaries(commands, config, database, rows, now_utc_ns=now_utc_ns)
    for failure in stored.failures:
        print(f"salus-acct: summary not stored: {failure}", file=sys.stderr)
    if json:
        write_json(_told(found, stored.count))
    else:
        _print(found, "missing" if dry_run else "filled", stored.count)
    if dry_run and (found.filled or found.disagreements or found.unknown):
        raise typer.Exit(ExitCode.FAILED)


def _told(found: "Reconciled", summary_count: int) -> dict[str, object]:
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
        f"disagreements, {len(found.unknown)} unknown to sacct, {summary_count} summaries stored"
    )
    for d in found.disagreements:
        print(f"  job {d.job.job_id} restart {d.job.restart_count}: {d.what}: ours {d.ours}, Slurm's {d.slurms}")
    for key in found.unknown:
        print(f"  job {key.job_id} restart {key.restart_count}: sacct has no such run")


def _read(path: Path) -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(errors="replace")
    except OSError as error:
        raise RequestError(f"sacct's table not read: {path}: {error.strerror}") from error
