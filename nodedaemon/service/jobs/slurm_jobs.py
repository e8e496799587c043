"""Jobs that Slurm starts: requests from the Prolog, the SPANK plugin and the Epilog, as in docs/protocol.md.

A hook may send a request twice. A job's sizes come from its `salus:` segment, which admission wrote. An unmeasured
job gets the whole device.
"""

from __future__ import annotations

import time
from typing import Any

from nodedaemon.config import weight_of
from nodedaemon.core.errors import SalusError
from nodedaemon.core.types import SECOND_NS, JobId
from nodedaemon.service.jobs.environment import JobEnvironment
from nodedaemon.service.jobs.prolog_files import JobStarts
from nodedaemon.service.jobs.registry import JobRegistry, job_class_of
from nodedaemon.service.journal.state import JobFacts
from nodedaemon.wire.control import JobEnd, JobStart, TaskRequest
from nodedaemon.wire.logs import log
from nodedaemon.wire.segment import AdmissionSegment, parse_segment
from nodedaemon.wire.users import user_name

Answer = dict[str, Any]
#: The longest time that an Epilog waits for the processes of its job.
JOB_END_WAIT_S_MAX = 1.5


class SlurmJobs:
    def __init__(self, registry: JobRegistry, environment: JobEnvironment, starts: JobStarts) -> None:
        self._registry = registry
        self._environment = environment
        self._starts = starts
        self._configuration, self._devices = registry.shell.configuration, registry.shell.devices

    async def job_start(self, request: JobStart) -> Answer:
        job = self._registry.get(request.job)
        if job is not None and request.restart > job.restart_count:
            await self.job_end(JobEnd(request.job, request.uid))
            job = None
        timeout_s = min(request.wait_ms / 1000, self._configuration.settings.slurm.prolog_timeout_ns / SECOND_NS)
        asked_s = time.monotonic()
        if job is None and not request.segment and request.gpus:
            request = await self._starts.complete(request, timeout_s / 2)
            # Meanwhile the Prolog's file may have been read, or the Prolog may have sent its request again.
            job = self._registry.get(request.job)
        job = job or self._open(request)
        remaining_s = max(0.05, timeout_s - (time.monotonic() - asked_s) - 0.05)
        if await self._registry.wait_admitted(job, remaining_s):
            return {"ok": True}
        return {"ok": False, "why": f"job {request.job}: its memory is not free yet; run salus why {request.job}"}

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
            devices=tuple(devices),
            persistent_bytes=segment.persistent_bytes or 0,
            ephemeral_bytes=segment.ephemeral_bytes or 0,
            job_class=job_class,
            weight=weight_of(settings, job_class),
            remaining_ns=None if segment.time_s is None else segment.time_s * SECOND_NS,
            kind="shared" if segment.kind == "shared" else "exclusive",
        )
        job = self._registry.add(job)
        self._registry.open_sessions(job)
        return job

    async def task_env(self, request: TaskRequest) -> Answer:
        job = None
        try:
            job = self._registry.get(request.job) or await self.find_unannounced(JobId(request.job), request.cuda)
        except SalusError as error:
            log.warning("job without Prolog: not added", job=request.job, why=str(error))
        device = job.device if job is not None else self._devices.with_fewest_sessions()
        variables = await self._environment.variables(device, request.uid)
        if not request.cuda:
            variables |= self._devices[device].visible_as(str(self._devices[device].index))
        self._registry.add_process(job, request.pid, request.uid)
        return {"ok": True, "env": [f"{name}={value}" for name, value in variables.items()]}

    async def find_unannounced(self, job: JobId, gpus: str = "") -> JobFacts | None:
        """Add a job whose Prolog did not reach us; None if slurmctld says that it is not ours."""
        start = await self._starts.find(job, gpus)
        if start is not None:
            await self.job_start(start)
        return self._registry.get(job)

    async def task_start(self, request: TaskRequest) -> Answer:
        self._registry.add_process(self._registry.get(request.job), request.pid, request.uid)
        return {"ok": True}

    async def task_exit(self, _request: TaskRequest) -> Answer:
        """A task's processes may outlive it; the pidfds of its sessions show when they end."""
        return {"ok": True}

    async def end_without_epilog(self, job: JobId) -> None:
        self._starts.files.remove(job)
        await self.job_end(JobEnd(job))

    async def job_end(self, request: JobEnd) -> Answer:
        job = self._registry.get(request.job)
        if job is not None:
            timeout_s = self._configuration.for_device(job.device).lanes.release_timeout_ns / 1e9
            await self._registry.end(job, min(JOB_END_WAIT_S_MAX, timeout_s))
        return {"ok": True}
