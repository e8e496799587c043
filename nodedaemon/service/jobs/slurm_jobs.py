"""Jobs that Slurm starts: the requests of Prolog, SPANK plugin and Epilog. docs/protocol.md specifies them.

A hook may send every request twice. A job's sizes come from its `salus:` segment, where admission has put them. A job
that nobody has measured gets the whole device.
"""

from __future__ import annotations

import time
from typing import Any

from nodedaemon.config import weight_of
from nodedaemon.core.errors import SalusError
from nodedaemon.core.types import SECOND_NS, JobId
from nodedaemon.service.devices.directory import DeviceDirectory
from nodedaemon.service.jobs.environment import JobEnvironment
from nodedaemon.service.jobs.job_sessions import JobSessions
from nodedaemon.service.jobs.prolog_files import JobStarts
from nodedaemon.service.jobs.registry import JobRegistry, job_class_of
from nodedaemon.service.journal.state import JobFacts
from nodedaemon.wire.control import JobEnd, JobStart, TaskRequest
from nodedaemon.wire.segment import AdmissionSegment, parse_segment
from nodedaemon.wire.users import user_name

Answer = dict[str, Any]
#: An Epilog does not wait longer for the processes of its job.
JOB_END_WAIT_S_MAX = 1.5


class SlurmJobs:
    def __init__(
        self,
        registry: JobRegistry,
        sessions: JobSessions,
        devices: DeviceDirectory,
        environment: JobEnvironment,
        starts: JobStarts,
        log: Any,
    ) -> None:
        self._registry = registry
        self._sessions = sessions
        self._devices = devices
        self._environment = environment
        self._starts = starts
        self._configuration = registry.configuration
        self._log = log

    async def job_start(self, request: JobStart) -> Answer:
        job = self._registry.get(request.job)
        if job is not None and request.restart > job.restart_count:
            await self.job_end(JobEnd(request.job, request.uid))
            job = None
        patience_s = min(request.wait_ms / 1000, self._configuration.settings.slurm.prolog_timeout_ns / SECOND_NS)
        asked_s = time.monotonic()
        if job is None and not request.segment and request.gpus:
            request = await self._starts.complete(request, patience_s / 2)
            # While Slurm was asked, its file may have been read or the Prolog may have asked again.
            job = self._registry.get(request.job)
        job = job or self._open(request)
        remaining_s = max(0.05, patience_s - (time.monotonic() - asked_s) - 0.05)
        if await self._sessions.wait_admitted(self._sessions.ids(job), remaining_s):
            return {"ok": True}
        return {"ok": False, "why": f"job {request.job}: its memory is not free yet; salus why {request.job} says why"}

    def _open(self, request: JobStart) -> JobFacts:
        segment = parse_segment(request.segment) or AdmissionSegment()
        fewest = self._devices.with_fewest_sessions
        devices = [self._devices.find(name) for name in request.gpus.split(",") if name] or [fewest()]
        settings = self._configuration.for_device(devices[0])
        job_class = job_class_of(segment.job_class, settings)
        job = JobFacts(
            job=JobId(request.job),
            number=int(request.job) if request.job.isdigit() else 0,
            uid=request.uid,
            user=request.user or user_name(request.uid),
            account=request.account,
            partition=request.partition,
            qos=request.qos,
            restart_count=request.restart,
            sluid=request.sluid,
            signature=segment.signature,
            admission=segment.admission,
            device=devices[0],
            devices=devices,
            persistent_bytes=segment.persistent_bytes or 0,
            ephemeral_bytes=segment.ephemeral_bytes or 0,
            job_class=job_class,
            weight=weight_of(settings, job_class),
            remaining_ns=None if segment.time_s is None else segment.time_s * SECOND_NS,
            kind="shared" if segment.kind == "shared" else "exclusive",
        )
        self._registry.add(job)
        for device in devices:
            self._sessions.open(job, device)
        return job

    async def task_env(self, request: TaskRequest) -> Answer:
        if self._registry.get(request.job) is None:
            start = await self._starts.find(request)
            try:
                if start is not None:
                    await self.job_start(start)
            except SalusError as error:
                self._log.warning("job without Prolog: not added", job=request.job, why=str(error))
        job = self._registry.get(request.job)
        device = job.device if job is not None else self._devices.with_fewest_sessions()
        variables = await self._environment.variables(device, request.uid)
        if not request.cuda:
            variables |= self._devices[device].visible_as(str(self._devices[device].index))
        self._registry.add_process(job, request.pid, request.uid)
        return {"ok": True, "env": [f"{name}={value}" for name, value in variables.items()]}

    async def task_start(self, request: TaskRequest) -> Answer:
        self._registry.add_process(self._registry.get(request.job), request.pid, request.uid)
        return {"ok": True}

    async def task_exit(self, _request: TaskRequest) -> Answer:
        """A task's processes may outlive it; the pidfds of its sessions show when they end."""
        return {"ok": True}

    async def job_end(self, request: JobEnd) -> Answer:
        job = self._registry.get(request.job)
        if job is not None:
            self._registry.mark_ended(job)
            timeout_s = self._configuration.for_device(job.device).lanes.release_timeout_ns / 1e9
            await self._sessions.close(job, min(JOB_END_WAIT_S_MAX, timeout_s))
            self._registry.remove(job)
        return {"ok": True}
