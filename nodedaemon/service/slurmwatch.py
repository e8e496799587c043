"""Puts together what the daemon asks and tells Slurm now and then: missed ends, suspension, longer limits."""

from __future__ import annotations

import time
from typing import Any

from nodedaemon.drivers.slurm import NodeCommands
from nodedaemon.service.dispatcher import Dispatcher
from nodedaemon.service.jobs import JobBook
from nodedaemon.service.markers import Markers
from nodedaemon.service.rules import Rules
from nodedaemon.service.sampler import Sampler
from nodedaemon.service.steps import StepWatch
from nodedaemon.service.timelimits import TimeLimits


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
