"""Jobs that `salus run` starts, or that a process starts by itself where `LocalJobs` allows it.

A job's sizes are the declared ones, but never below its profile. A job that is neither declared nor measured gets the
whole device or is refused, depending on `UnknownJob`.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from accounting.profiles import ProfileView
from nodedaemon.config import Settings, weight_of
from nodedaemon.config.choices import UnknownJob
from nodedaemon.core.errors import PeerError, RequestError
from nodedaemon.core.memory import round_up
from nodedaemon.core.types import SECOND_NS, DeviceId, JobId
from nodedaemon.drivers.process import read_stat
from nodedaemon.service.jobs.environment import JobEnvironment
from nodedaemon.service.jobs.registry import LOCAL_ACCOUNT, JobRegistry, is_alive, job_class_of
from nodedaemon.service.journal.state import JobFacts, ProcessFacts
from nodedaemon.service.usage.ledger import Ledger
from nodedaemon.wire.control import RunStart, RunWait
from nodedaemon.wire.trust import PeerCredentials
from nodedaemon.wire.users import user_name

Answer = dict[str, Any]


class LocalJobs:
    def __init__(self, registry: JobRegistry, environment: JobEnvironment, ledger: Ledger) -> None:
        self._registry = registry
        self._environment = environment
        self._ledger = ledger
        self._configuration, self._devices = registry.shell.configuration, registry.shell.devices

    async def run_start(self, request: RunStart, peer: PeerCredentials) -> Answer:
        stat = read_stat(peer.pid)
        if stat is None:
            raise PeerError(f"run refused: pid {peer.pid}: it is gone")
        device = self._devices.find(request.device) if request.device else self._devices.with_fewest_sessions()
        job = await self.add(request, peer.uid, device, ProcessFacts(peer.pid, stat.start_ticks))
        (session,) = self._registry.open_sessions(job)
        if request.wait_ms:
            await self._registry.wait_admitted(job, request.wait_ms / 1000)
        variables = await self._environment.variables(device, peer.uid)
        return {
            "ok": True,
            "job": job.job,
            "session": session.session,
            "kind": job.kind,
            "is_admitted": session.view.is_admitted,
            "env": [f"{name}={value}" for name, value in variables.items()],
        }

    async def run_wait(self, request: RunWait, uid: int) -> Answer:
        """Wait until the job is admitted. A command calls this repeatedly to show progress."""
        job = self._registry.get(request.job)
        if job is None or job.uid != uid:
            raise RequestError(f"run: job {request.job}: you have no such job here")
        is_admitted = await self._registry.wait_admitted(job, request.wait_ms / 1000)
        return {"ok": True, "is_admitted": is_admitted}

    async def add(self, request: RunStart, uid: int, device: DeviceId, root: ProcessFacts) -> JobFacts:
        settings = self._configuration.for_device(device)
        jobs_max = self._configuration.settings.daemon.user_sessions_max
        if uid != 0 and sum(1 for job in self._registry.jobs.values() if job.is_local and job.uid == uid) >= jobs_max:
            raise RequestError(f"run refused: uid {uid}: it has as many jobs as UserSessions allows")
        user = user_name(uid)
        job_class = job_class_of(request.job_class, settings)
        profile = None
        if request.signature:
            profile = await self._ledger.find_profile(user, request.signature, self._devices[device].model)
        persistent_bytes, ephemeral_bytes, kind = self._sizes(request, profile, settings, device)
        number = self._registry.next_local_number()
        job = JobFacts(
            job=JobId(f"local-{number}"),
            number=number,
            uid=uid,
            user=user,
            account=request.account or LOCAL_ACCOUNT,
            name=request.name,
            signature=request.signature,
            device=device,
            devices=(device,),
            persistent_bytes=persistent_bytes,
            ephemeral_bytes=ephemeral_bytes,
            job_class=job_class,
            weight=weight_of(settings, job_class),
            remaining_ns=request.remaining_s * SECOND_NS or None,
            kind=kind,
            is_local=True,
            roots=(root,),
        )
        if profile is not None:
            job = replace(
                job,
                profile_persistent_bytes=profile.persistent_bytes,
                profile_ephemeral_bytes=profile.ephemeral_bytes,
                profile_model_hash=profile.model_hash,
                profile_input_hash=profile.input_hash,
                boundary_rule=profile.boundary_rule,
            )
        return self._registry.add(job)

    def _sizes(
        self, request: RunStart, profile: ProfileView | None, settings: Settings, device: DeviceId
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

    async def end_finished(self) -> None:
        """End local jobs whose first process is gone and that have no attached session."""
        # Check the sessions first: for a job with an attached session, /proc need not be read.
        attached = self._registry.attached_jobs()
        for job in list(self._registry.jobs.values()):
            if job.is_local and not job.is_ended and job.job not in attached and not any(map(is_alive, job.roots)):
                await self._registry.end(job, timeout_s=0)
