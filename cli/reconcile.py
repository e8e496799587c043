"""`salus-acct reconcile`: our book beside Slurm's. For a timer: says nothing new when both agree."""

import os
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from accounting.selection import JobSelector
from cli.backend import opened
from cli.config import config_of
from cli.entry import ExitCode
from cli.moments import SECOND_NS, STANDARD_FORMAT, parse_moment
from cli.render import write_json
from nodedaemon.config import Config
from nodedaemon.core.errors import RequestError

if TYPE_CHECKING:
    from accounting.database import Database
    from accounting.reconcile import SacctRow

# Each costs a command or two; what is left is the next run's.
SUMMARIES_MAX = 200


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
    from accounting import reconcile as books

    config = config_of(context)
    now = datetime.now().astimezone()
    window = (parse_moment(starttime, now), parse_moment(endtime, now))
    text = _read(from_sacct) if from_sacct is not None else _run_sacct(config, window)
    rows = books.read_sacct(text, cluster=config.settings.cluster.name)
    with opened(config) as database:
        found = books.reconcile(database, rows, window=window, tolerance_s=tolerance, is_dry=dry_run)
        summary_count = 0 if dry_run or from_sacct is not None else _store_summaries(config, database, rows)
    if json:
        write_json(
            {
                "compared": found.compared_count,
                "filled": [key.job_id for key in found.filled],
                "disagreements": [
                    {
                        "job": d.job.job_id,
                        "restart": d.job.restart_count,
                        "what": d.what,
                        "ours": d.ours,
                        "slurm": d.slurms,
                    }
                    for d in found.disagreements
                ],
                "unknown": [key.job_id for key in found.unknown],
                "summaries": summary_count,
            }
        )
    else:
        verb = "missing" if dry_run else "filled"
        print(
            f"{found.compared_count} runs compared, {len(found.filled)} {verb}, {len(found.disagreements)} "
            f"disagreements, {len(found.unknown)} unknown to sacct, {summary_count} summaries stored"
        )
        for d in found.disagreements:
            print(f"  job {d.job.job_id} restart {d.job.restart_count}: {d.what}: ours {d.ours}, Slurm's {d.slurms}")
        for key in found.unknown:
            print(f"  job {key.job_id} restart {key.restart_count}: sacct has no such run")
    if dry_run and (found.filled or found.disagreements or found.unknown):
        raise typer.Exit(ExitCode.FAILED)


def _store_summaries(config: Config, database: "Database", rows: "Sequence[SacctRow]") -> int:
    """Merge a summary into the AdminComment of finished jobs that have none, a bounded number at a time."""
    from accounting.jobpage import job_pages
    from accounting.viewer import Viewer
    from cli.jobprint import commands_of, merge_into_slurm
    from cli.summary import MARK

    operator = Viewer(uid=0, user="root", is_operator=True)
    # Of a requeued job only the last run: there is one comment.
    latest = {row.record.key.job_id: row for row in sorted(rows, key=lambda row: row.record.key)}
    wanted = [
        row
        for row in latest.values()
        if row.record.end_utc_ns is not None
        and MARK not in row.admin_comment
        and config.for_partition(row.record.partition).storage.is_summary_written
    ][:SUMMARIES_MAX]
    commands = commands_of(config)
    for row in wanted:
        key = row.record.key
        selector = JobSelector(job_id=key.job_id)
        pages = job_pages(database, operator, selector, now_utc_ns=time.time_ns(), clusters=(key.cluster,))
        page = next(page for page in reversed(pages) if page.job_id == key.job_id)
        merge_into_slurm(commands, page, row.admin_comment)
    return len(wanted)


def _read(path: Path) -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(errors="replace")
    except OSError as error:
        raise RequestError(f"sacct's table not read: {path}: {error.strerror}") from error


def _run_sacct(config: Config, window: tuple[int, int]) -> str:
    from accounting.reconcile import SACCT_OPTIONS
    from slurm_plugin.slurm.cli import SlurmCommands

    edges = [datetime.fromtimestamp(edge_ns // SECOND_NS).strftime(STANDARD_FORMAT) for edge_ns in window]
    slurm = config.settings.slurm
    commands = SlurmCommands(slurm.bin_dir, slurm.timeout_ns / SECOND_NS, {**os.environ, "SLURM_TIME_FORMAT": "%s"})
    return commands.run("sacct", *SACCT_OPTIONS, "-S", edges[0], "-E", edges[1])
