"""The objects that most parts of salusd need, in one object, so that a constructor takes one argument for them."""

from __future__ import annotations

from dataclasses import dataclass

from nodedaemon.service.control.configuration import ActiveConfiguration
from nodedaemon.service.devices.directory import DeviceDirectory
from nodedaemon.service.jobs.slurm import NodeSlurm
from nodedaemon.service.journal.dispatcher import Dispatcher
from nodedaemon.service.sessions.roster import Roster
from nodedaemon.service.usage.recorder import UsageRecorder


@dataclass(frozen=True, slots=True)
class Shell:
    """The node's settings and devices, the dispatcher, live sessions, usage records, and Slurm's commands."""

    configuration: ActiveConfiguration
    devices: DeviceDirectory
    dispatcher: Dispatcher
    roster: Roster
    recorder: UsageRecorder
    slurm: NodeSlurm
