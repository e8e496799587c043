"""`salus-acct reconcile`: our book beside Slurm's. For a timer: says nothing new when both agree."""

import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from cli.backend import opened
from cli.config import config_of
from cli.entry import ExitCode
from cli.moments import SECOND_NS, STANDARD_FORMAT, parse_moment
from cli.render import write_json
from nodedaemon.config import Config
from nodedaemon.core.errors import RequestError


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
            }
        )
    else:
        verb = "missing" if dry_run else "filled"
        print(
            f"{found.compared_count} runs compared, {len(found.filled)} {verb}, {len(found.disagreements)} "
            f"disagreements, {len(found.unknown)} unknown to sacct"
        )
        for d in found.disagreements:
            print(f"  job {d.job.job_id} restart {d.job.restart_count}: {d.what}: ours {d.ours}, Slurm's {d.slurms}")
        for key in found.unknown:
            print(f"  job {key.job_id} restart {key.restart_count}: sacct has no such run")
    if dry_run and (found.filled or found.disagreements or found.unknown):
        raise typer.Exit(ExitCode.FAILED)


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
