"""Limits a job's device memory by cgroup, if the driver can. Such a limit does not depend on the job's cooperation.

The limit is P + E of the job's live sessions on the device. It includes E because a driver may count an imported lane
as memory of the process that imported it; so a job that bypasses libsalus gets at most E more than its share. The limit
is lifted when the job ends. If the driver has no such limits, or the job has no cgroup of its own (cgroup version 1, or
no Slurm), libsalus alone enforces the cap.
"""

from __future__ import annotations

from collections.abc import Callable

from nodedaemon.core import commands
from nodedaemon.core.commands import Command
from nodedaemon.core.errors import OperatingError
from nodedaemon.core.events import Event
from nodedaemon.core.types import DeviceId
from nodedaemon.drivers.cgroup import job_group
from nodedaemon.service.journal.state import JobFacts
from nodedaemon.service.shell import Shell
from nodedaemon.wire.logs import log


class MemoryLimits:
    def __init__(self, shell: Shell, find_group: Callable[[int], str] = job_group) -> None:
        self._dispatcher = shell.dispatcher
        self._state = shell.dispatcher.state
        self._devices = {uuid: device for uuid, device in shell.devices.items() if device.capabilities.limits_memory}
        self._find_group = find_group
        self._without: set[DeviceId] = set()

    def confine(self, job: JobFacts, pid: int = 0) -> None:
        """Set the job's limits, or lift them if it has ended. The cgroup is that of `pid` or of a known process."""
        wanted = [uuid for uuid in job.devices if uuid in self._devices and uuid not in self._without]
        if not wanted:
            return
        if not job.cgroup and not job.is_ended:
            pids = [pid, *(root.pid for root in job.roots)]
            found = next((group for one in pids if one and (group := self._find_group(one))), "")
            if found:
                job = self._dispatcher.change_job(job.job, cgroup=found) or job
        if job.cgroup:
            for uuid in wanted:
                self._set(uuid, job)

    def watch(self, event: Event, made: list[Command], now_ns: int) -> None:  # noqa: ARG002 - EventObserver
        """Raise the limit before the session may allocate more."""
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
            is_limited = self._devices[uuid].limit_group(job.cgroup, None if job.is_ended else limit_bytes)
        except OperatingError as error:
            log.warning("memory limit not set", job=job.job, device=uuid, cgroup=job.cgroup, why=str(error))
            return
        if not is_limited:
            self._without.add(uuid)
            log.info("the driver cannot limit memory by cgroup", device=uuid)
