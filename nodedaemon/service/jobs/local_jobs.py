"""Jobs that `salus run` starts, or that a process starts by itself where `LocalJobs` allows it.

A job's sizes are the declared ones, but never below its profile. A job that nobody has measured gets the whole device,
or is refused, as `UnknownJob` says.
"""

from __future__ import annotations

from typing import Any

from nodedaemon.config import Settings, weight_of
from nodedaemon.config.choices import UnknownJob
from nodedaemon.core.errors import PeerError, RequestError
from nodedaemon.core.memory import round_up
from nodedaemon.core.types import SECOND_NS, DeviceId, JobId
from nodedaemon.drivers.process import PeerCredentials, read_stat
from nodedaemon.service.control.configuration import ActiveConfiguration
from nodedaemon.service.devices.directory import DeviceDirectory
from nodedaemon.service.jobs.environment import JobEnvironment
from nodedaemon.service.jobs.job_sessions import JobSessions
from nodedaemon.service.jobs.registry import JobRegistry, is_alive, job_class_of
from nodedaemon.service.journal.state import JobFacts, ProcessFacts
from nodedaemon.service.usage.ledger import ProfileStore, StoredProfile
from nodedaemon.wire.control import RunStart
from nodedaemon.wire.users import user_name

Answer = dict[str, Any]


class LocalJobs:
    def __init__(
        self,
        registry: JobRegistry,
        sessions: JobSessions,
        devices: DeviceDirectory,
        environment: JobEnvironment,
        profiles: ProfileStore,
        configuration: ActiveConfiguration,
    ) -> None:
        self._registry = registry
        self._sessions = sessions
        self._devices = devices
        self._environment = environment
        self._profiles = profiles
        self._configuration = configuration

    async def run_start(self, request: RunStart, peer: PeerCredentials) -> Answer:
        stat = read_stat(peer.pid)
        if stat is None:
            raise PeerError(f"run refused: pid {peer.pid}: it is gone")
        device = self._devices.find(request.device) if request.device else self._devices.with_fewest_sessions()
        job = await self.add(request, peer.uid, device, ProcessFacts(peer.pid, stat.start_ticks))
        session = self._sessions.open(job, device)
        if request.wait_ms:
            await self._sessions.wait_admitted([session.session], request.wait_ms / 1000)
        variables = await self._environment.variables(device, peer.uid)
        return {
            "ok": True,
            "job": job.job,
            "session": session.session,
            "kind": job.kind,
            "is_admitted": session.view.is_admitted,
            "env": [f"{name}={value}" for name, value in variables.items()],
        }

    async def run_wait(self, name: str, uid: int, wait_ms: int) -> Answer:
        """Wait until the job's memory is free; for a command that shows progress meanwhile."""
        job = self._registry.get(name)
        if job is None or job.uid != uid:
            raise RequestError(f"run: job {name}: you have no such job here")
        is_admitted = await self._sessions.wait_admitted(self._sessions.ids(job), wait_ms / 1000)
        return {"ok": True, "is_admitted": is_admitted}

    async def add(self, request: RunStart, uid: int, device: DeviceId, root: ProcessFacts) -> JobFacts:
        settings = self._configuration.for_device(device)
        user = user_name(uid)
        job_class = job_class_of(request.job_class, settings)
        profile = None
        if request.signature:
            profile = await self._profiles.find_profile(user, request.signature, self._devices[device].model)
        persistent_bytes, ephemeral_bytes, kind = self._sizes(request, profile, settings, device)
        number = self._registry.next_local_number()
        job = JobFacts(
            job=JobId(f"local-{number}"),
            number=number,
            uid=uid,
            user=user,
            account=request.account or "local",
            name=request.name,
            signature=request.signature,
            device=device,
            devices=[device],
            persistent_bytes=persistent_bytes,
            ephemeral_bytes=ephemeral_bytes,
            job_class=job_class,
            weight=weight_of(settings, job_class),
            remaining_ns=request.remaining_s * SECOND_NS or None,
            kind=kind,
            is_local=True,
            roots=[root],
        )
        if profile is not None:
            job.profile_persistent_bytes = profile.persistent_bytes
            job.profile_ephemeral_bytes = profile.ephemeral_bytes
            job.profile_model_hash, job.profile_input_hash = profile.model_hash, profile.input_hash
            job.boundary_rule = profile.boundary_rule
        self._registry.add(job)
        return job

    def _sizes(
        self, request: RunStart, profile: StoredProfile | None, settings: Settings, device: DeviceId
    ) -> tuple[int, int, str]:
        """Persistent and ephemeral bytes, and `shared` or `exclusive`."""
        percent = 100 + settings.lanes.headroom_percent
        persistent_bytes, ephemeral_bytes = request.persistent_bytes, request.ephemeral_bytes
        if profile is not None:
            persistent_bytes = max(persistent_bytes, profile.persistent_bytes * percent // 100)
            ephemeral_bytes = max(ephemeral_bytes, profile.ephemeral_bytes * percent // 100)
        capacity_bytes = self._devices[device].usable_bytes
        if persistent_bytes == 0 and ephemeral_bytes == 0:
            if settings.admission.unknown_job is UnknownJob.REFUSE:
                raise RequestError("run refused: this job was never measured; declare its memory with --persistent")
            return capacity_bytes, 0, "exclusive"
        persistent_bytes, ephemeral_bytes = round_up(persistent_bytes), round_up(ephemeral_bytes)
        if persistent_bytes + ephemeral_bytes > capacity_bytes:
            raise RequestError(
                f"run refused: {persistent_bytes} persistent and {ephemeral_bytes} lane bytes are needed, the device "
                f"has {capacity_bytes}; give it more memory or make the job smaller"
            )
        return persistent_bytes, ephemeral_bytes, "shared"

    def end_finished(self) -> None:
        """End local jobs whose first process is gone and that have no attached session."""
        # One pass over the sessions first: a job with an attached session needs no look at /proc.
        attached = self._sessions.attached_jobs()
        for job in list(self._registry.jobs.values()):
            if job.is_local and not job.is_ended and job.job not in attached and not any(map(is_alive, job.roots)):
                self._sessions.leave(job)
                self._registry.mark_ended(job)
                self._registry.remove(job)
