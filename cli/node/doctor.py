"""`salus doctor`: finds problems on this node and says how to fix them."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.entry import ExitCode
from cli.output.render import Json, form_of, parse_columns, write_rows
from cli.remote.salusd import node_name
from cli.site.config import config_of
from nodedaemon.config import Config
from nodedaemon.core.errors import SalusError

if TYPE_CHECKING:
    from nodedaemon.service.checks.doctor import Diagnosis

COLUMNS = parse_columns("level=LEVEL check=CHECK seen=SEEN advice=WHAT_TO_DO")


def doctor(
    context: typer.Context,
    selftest: Annotated[
        bool, typer.Option("--selftest", help="Also test lanes, hand-over and faults on idle devices.")
    ] = False,
    node: Annotated[str, typer.Option("--node", "-N", help="Name of the node in salus.conf. Default: this node.")] = "",
    json: Json = False,
) -> None:
    """Check this node: driver, NVML, lanes, cgroups, MPS, device files, sockets, database and Slurm's configuration.

    Exit code 0: no failure; 1: at least one failure.
    """
    from nodedaemon.service.checks.doctor import Level, examine
    from nodedaemon.service.checks.selftest import run_selftest

    config = config_of(context)
    name = node or node_name()
    findings = [*examine(config, name), *_slurm_findings(config)]
    if selftest:
        findings += run_selftest(config, name)
    rows = [{key: str(value) for key, value in asdict(finding).items()} for finding in findings]
    write_rows(rows, COLUMNS, form_of(json=json))
    if any(finding.level is Level.FAILURE for finding in findings):
        raise typer.Exit(ExitCode.FAILED)


def _slurm_findings(config: Config) -> "list[Diagnosis]":
    """Differences between salus.conf and Slurm's files; none on a machine without Slurm's files."""
    from cli.site.slurm_config import check_slurm
    from nodedaemon.service.checks.doctor import Diagnosis, Level

    path = config.settings.slurm.conf
    if not Path(path).exists():
        return [Diagnosis("slurm", Level.NOTE, f"{path}: not found", "set SlurmConf if this node belongs to a cluster")]
    try:
        found = check_slurm(config)
    except SalusError as error:
        return [Diagnosis("slurm", Level.FAILURE, str(error), f"make {path} readable")]
    if not found:
        return [Diagnosis("slurm", Level.OK, f"{path}: agrees with salus.conf")]
    levels = {"error": Level.FAILURE, "warning": Level.WARNING}
    return [Diagnosis("slurm", levels[one.level], f"{one.where}: {one.what}", one.advice) for one in found]
