"""Limits of device memory by cgroup, where the driver has them: a fence that does not need the job's cooperation.

A Slurm job's cgroup may hold what the job was promised on a device, P + E of its live sessions, and the driver refuses
more. E is in it because a driver may count a lane that a process imported as the importer's own; so a job that goes
around libsalus gets at most E more than its own share. The limit is lifted when the job ends. Where the driver has
none, or the job has no cgroup of its own (version 1, or no Slurm), nothing is done: libsalus keeps the cap alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nodedaemon.core import commands
from nodedaemon.core.commands import Command
from nodedaemon.core.errors import OperatingError
from nodedaemon.core.events import Event
from nodedaemon.core.types import DeviceId
from nodedaemon.drivers.cgroup import job_group
from nodedaemon.drivers.device import Device
from nodedaemon.service.journal.state import JobFacts, JobNote, ShellState


class MemoryLimits:
    def __init__(
        self,
        state: ShellState,
        devices: Mapping[DeviceId, Device],
        *,
        note: Callable[[JobNote], None],
        find_group: Callable[[int], str] = job_group,
        log: Any,
    ) -> None:
        self._state = state
        self._devices = {uuid: device for uuid, device in devices.items() if device.kind == "cuda"}
        self._note = note
        self._find_group = find_group
        self._log = log
        self._without: set[DeviceId] = set()

    def confine(self, job: JobFacts, pid: int = 0) -> None:
        """Set the job's limits anew; called when a process of it is known, and lifts them once it has ended."""
        wanted = [uuid for uuid in job.devices if uuid in self._devices and uuid not in self._without]
        if not wanted:
            return
        if not job.cgroup and not job.is_ended:
            pids = [pid, *(root.pid for root in job.roots)]
            job.cgroup = next((group for one in pids if one and (group := self._find_group(one))), "")
            if job.cgroup:
                self._note(JobNote(job))
        if job.cgroup:
            for uuid in wanted:
                self._set(uuid, job)

    def watch(self, event: Event, made: list[Command], now_ns: int) -> None:  # noqa: ARG002 - a watcher's shape
        """A session that may have more must find the limit raised before it hears so."""
        for command in made:
            if isinstance(command, commands.AllowOverrun):
                facts = self._state.sessions.get(command.session)
                job = self._state.jobs.get(facts.job) if facts is not None else None
                if job is not None and job.cgroup:
                    self.confine(job)

    def _set(self, uuid: DeviceId, job: JobFacts) -> None:
        sessions = [one for one in self._state.live_sessions(job.job) if one.device == uuid]
        limit_bytes = sum(one.view.persistent_bytes + one.view.ephemeral_bytes for one in sessions)
        if not job.is_ended and not limit_bytes:
            return
        try:
            is_there = self._devices[uuid].limit_group(job.cgroup, None if job.is_ended else limit_bytes)
        except OperatingError as error:
            self._log.warning("memory limit not set", job=job.job, device=uuid, cgroup=job.cgroup, why=str(error))
            return
        if not is_there:
            self._without.add(uuid)
            self._log.info("the driver has no memory limits by cgroup", device=uuid)
