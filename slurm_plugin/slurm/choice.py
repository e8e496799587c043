"""Chooses the back end: Slurm's commands, or pyslurm if salus.conf asks for it and it matches the cluster."""

from __future__ import annotations

from nodedaemon.config.choices import SlurmAccess
from nodedaemon.config.keys import Slurm as SlurmSettings
from nodedaemon.core.types import SECOND_NS
from slurm_plugin.slurm import SlurmClient
from slurm_plugin.slurm.cli import SlurmCommands


def open_slurm(settings: SlurmSettings) -> SlurmClient:
    commands = SlurmCommands(settings.bin_dir, settings.timeout_ns / SECOND_NS)
    if settings.access is SlurmAccess.PYSLURM:
        # Imported here because it is optional and loads libslurm.
        from slurm_plugin.slurm.pyslurm import open_pyslurm  # noqa: PLC0415

        return open_pyslurm(commands)
    return commands
