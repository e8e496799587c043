"""Puts together what the daemon asks and tells Slurm now and then: missed ends, suspension, longer limits."""

from __future__ import annotations

import time
from typing import Any

from nodedaemon.drivers.slurm import NodeCommands
from nodedaemon.service.control.configuration import Rules
from nodedaemon.service.devices.readings import Sampler
from nodedaemon.service.jobs.orphan_jobs import StepWatch
from nodedaemon.service.jobs.prolog_files import Markers
from nodedaemon.service.jobs.registry import JobBook
from nodedaemon.service.jobs.time_limits import TimeLimits
from nodedaemon.service.journal.dispatcher import Dispatcher


def node_commands(node: str, rules: Rules) -> NodeCommands:
    slurm = rules.settings.slurm
    return NodeCommands(node, slurm.bin_dir, slurm.timeout_ns / 1e9)


def watch_slurm(
    node: str, rules: Rules, dispatcher: Dispatcher, jobs: JobBook, markers: Markers, sampler: Sampler, log: Any
) -> StepWatch:
    def commands() -> NodeCommands:
        return node_commands(node, rules)

    limits = TimeLimits(
        commands,
        dispatcher.state,
        sessions=lambda: (one for device in dispatcher.engine.snapshot().devices for one in device.sessions),
        settings=rules.settings_of_partition,
        note=dispatcher.note,
        clock=time.monotonic_ns,
        log=log,
    )
    return StepWatch(
        commands,
        dispatcher.state,
        end=jobs.job_end,
        forget=markers.forget,
        look_at_processes=sampler.look_at_processes,
        also=limits.look,
        log=log,
    )
