"""Slurm's commands on this node, with the directory and time-out of the active configuration."""

from __future__ import annotations

from dataclasses import dataclass

from nodedaemon.drivers.cgroup import JobPlace, list_pids
from nodedaemon.drivers.slurm import NodeCommands
from nodedaemon.service.control.configuration import ActiveConfiguration


@dataclass(frozen=True, slots=True)
class NodeSlurm:
    node: str
    configuration: ActiveConfiguration

    def commands(self) -> NodeCommands:
        slurm = self.configuration.settings.slurm
        return NodeCommands(self.node, slurm.bin_dir, slurm.timeout_ns / 1e9)

    def list_pids(self) -> dict[int, JobPlace]:
        """Processes of all steps on the node; blocks for some milliseconds."""
        return list_pids(self.node, self.configuration.settings.slurm.bin_dir)
