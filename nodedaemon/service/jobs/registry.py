"""Jobs as Slurm's hooks and `salus run` make them known; docs/protocol.md has the verbs.

Every verb may come twice. A job's bytes come from its `salus:` segment (admission decided them), from its declaration
or its profile (`salus run`), or are the whole device for a job that nobody has measured.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from nodedaemon.config import Settings, weight_of
from nodedaemon.config.choices import UnknownJob
from nodedaemon.core.errors import PeerError, RequestError
from nodedaemon.core.memory import round_up
from nodedaemon.core.types import SECOND_NS, DeviceId, JobClass, JobId
from nodedaemon.drivers.cgroup import JobPlace
from nodedaemon.drivers.device import Device
from nodedaemon.drivers.process import PeerCredentials, Process, read_stat
from nodedaemon.service.jobs.identity import Found, find_job
from nodedaemon.service.journal.dispatcher import Dispatcher
from nodedaemon.service.journal.state import CounterNote, JobFacts, JobGone, JobNote, ProcessFacts
from nodedaemon.service.sessions.attach import SessionDesk
from nodedaemon.service.sessions.executor import Executor
from nodedaemon.service.sessions.roster import Roster
from nodedaemon.wire.segment import AdmissionSegment, parse_segment

Answer = dict[str, Any]


class JobStart(msgspec.Struct):
    """Prolog."""

    job: str
    uid: int
    user: str = ""
    gpus: str = ""
    restart: int = 0
    partition: str = ""
    account: str = ""
    qos: str = ""
    segment: str = ""
    sluid: str = ""
    wait_ms: int = 1000


class TaskRequest(msgspec.Struct):
    """SPANK: task_env, task_start, task_exit."""

    job: str
    uid: int
    pid: int = 0
    step: str | int = ""
    task: str | int = ""
    cuda: str = ""
    status: int = 0


class JobEnd(msgspec.Struct):
    job: str
    uid: int = -1


class RunStart(msgspec.Struct):
    """`salus run`. Sizes are as declared, 0 where the profile is to say them."""

    name: str = ""
    signature: str = ""
    job_class: str = msgspec.field(name="class", default="")
    persistent_bytes: int = 0
    ephemeral_bytes: int = 0
    device: str = ""
    account: str = ""
    remaining_s: int = 0
    wait_ms: int = 0


class Recorded(msgspec.Struct, frozen=True):
    """A stored profile, without headroom."""

    persistent_bytes: int
    ephemeral_bytes: int
    iteration_ns: int | None = None
    model_hash: str = ""
    input_hash: str = ""
    boundary_rule: str = ""


FindProfile = Callable[[str, str, str], Awaitable[Recorded | None]]
#: Makes a job known whose Prolog did not come; nothing happens where it is not ours.
Announce = Callable[[TaskRequest], Awaitable[None]]
Complete = Callable[[JobStart, float], Awaitable[JobStart]]


class JobBook:
    def __init__(
        self,
        dispatcher: Dispatcher,
        roster: Roster,
        desk: SessionDesk,
        executor: Executor,
        devices: Mapping[DeviceId, Device],
        *,
        settings: Callable[[DeviceId], Settings],
        find_profile: FindProfile,
        list_pids: Callable[[], Mapping[int, JobPlace]],
        environment: Callable[[DeviceId, int], Awaitable[dict[str, str]]],
        utc_ns: Callable[[], int],
        on_job: Callable[[JobFacts], None],
        confine: Callable[[JobFacts, int], None],
        announce: Announce,
        complete: Complete,
        log: Any,
    ) -> None:
        self._dispatcher = dispatcher
        self._roster = roster
        self._desk = desk
        self._executor = executor
        self._devices = devices
        self._settings = settings
        self._find_profile = find_profile
        self._list_pids = list_pids
        self._environment = environment
        self._utc_ns = utc_ns
        self._on_job = on_job
        self._confine = confine
        self._announce = announce
        self._complete = complete
        self._log = log

    # Hooks of Slurm

    async def job_start(self, request: JobStart) -> Answer:
        known = self._dispatcher.state.jobs.get(JobId(request.job))
        if known is not None and request.restart > known.restart_count:
            await self.job_end(JobEnd(request.job, request.uid))
            known = None
        settings = self._settings(self._emptiest() if known is None else known.device)
        patience_s = min(request.wait_ms / 1000, settings.slurm.prolog_timeout_ns / SECOND_NS)
        asked_s = time.monotonic()
        if known is None and not request.segment and request.gpus:
            request = await self._complete(request, patience_s / 2)
            # Its file was read meanwhile, or the Prolog asked again.
            known = self._dispatcher.state.jobs.get(JobId(request.job))
        if known is None:
            known = self._open_job(request)
        sessions = self._dispatcher.state.live_sessions(known.job)
        deadline_s = max(0.05, patience_s - (time.monotonic() - asked_s) - 0.05)
        if await self._wait_admitted([session.session for session in sessions], deadline_s):
            return {"ok": True}
        return {"ok": False, "why": f"job {request.job}: its memory is not free yet; salus why {request.job} says why"}

    def _open_job(self, request: JobStart) -> JobFacts:
        segment = parse_segment(request.segment) or AdmissionSegment()
        devices = [self.find_device(name) for name in request.gpus.split(",") if name] or [self._emptiest()]
        settings = self._settings(devices[0])
        job_class = _job_class(segment.job_class, settings)
        kind = "shared" if segment.kind == "shared" else "exclusive"
        facts = JobFacts(
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
            kind=kind,
        )
        self._add(facts)
        for device in devices:
            self._desk.open(facts, device)
        return facts

    async def task_env(self, request: TaskRequest) -> Answer:
        if JobId(request.job) not in self._dispatcher.state.jobs:
            await self._announce(request)
        job = self._dispatcher.state.jobs.get(JobId(request.job))
        device = job.device if job is not None else self._emptiest()
        env = await self._environment(device, request.uid)
        if not request.cuda and self._devices[device].kind == "cuda":
            env["CUDA_VISIBLE_DEVICES"] = str(self._devices[device].index)
        self._register(job, request.pid, request.uid)
        return {"ok": True, "env": [f"{name}={value}" for name, value in env.items()]}

    async def task_start(self, request: TaskRequest) -> Answer:
        self._register(self._dispatcher.state.jobs.get(JobId(request.job)), request.pid, request.uid)
        return {"ok": True}

    async def task_exit(self, _request: TaskRequest) -> Answer:
        """A task's processes may outlive it; the pidfds of its sessions say when they end."""
        return {"ok": True}

    async def job_end(self, request: JobEnd) -> Answer:
        job = self._dispatcher.state.jobs.get(JobId(request.job))
        if job is None:
            return {"ok": True}
        await self.end_job(job)
        return {"ok": True}

    async def end_job(self, job: JobFacts) -> None:
        """The job is over: processes that are left are Slurm's to end, their sessions end with them."""
        job.is_ended = True
        self._dispatcher.note(JobNote(job))
        self._on_job(job)
        self._confine(job, 0)
        waiting = []
        for session in self._dispatcher.state.live_sessions(job.job):
            live = self._roster.get(session.session)
            if live is None or live.process is None:
                self._executor.leave(session.session, "finished")
            else:
                waiting.append(live)
        timeout_s = self._settings(job.device).lanes.release_timeout_ns / 1e9
        if waiting:
            await asyncio.wait(
                [asyncio.ensure_future(live.released.wait()) for live in waiting], timeout=min(1.5, timeout_s)
            )
        self._dispatcher.note(JobGone(job.job))

    # salus run

    async def run_start(self, request: RunStart, peer: PeerCredentials) -> Answer:
        stat = read_stat(peer.pid)
        if stat is None:
            raise PeerError(f"run refused: pid {peer.pid}: it is gone")
        device = self.find_device(request.device) if request.device else self._emptiest()
        facts = await self._local_job(request, peer.uid, device, ProcessFacts(peer.pid, stat.start_ticks))
        session = self._desk.open(facts, device)
        if request.wait_ms:
            await self._wait_admitted([session.session], request.wait_ms / 1000)
        env = await self._environment(device, peer.uid)
        return {
            "ok": True,
            "job": facts.job,
            "session": session.session,
            "kind": facts.kind,
            "is_admitted": session.view.is_admitted,
            "env": [f"{name}={value}" for name, value in env.items()],
        }

    async def run_wait(self, job_id: str, uid: int, wait_ms: int) -> Answer:
        """Wait till the job's memory is free; for a caller that shows progress meanwhile."""
        job = self._dispatcher.state.jobs.get(JobId(job_id))
        if job is None or job.uid != uid:
            raise RequestError(f"run: job {job_id}: not a job of yours here")
        sessions = [session.session for session in self._dispatcher.state.live_sessions(job.job)]
        return {"ok": True, "is_admitted": await self._wait_admitted(sessions, wait_ms / 1000)}

    async def _local_job(self, request: RunStart, uid: int, device: DeviceId, root: ProcessFacts) -> JobFacts:
        settings = self._settings(device)
        user = user_name(uid)
        job_class = _job_class(request.job_class, settings)
        recorded = None
        if request.signature:
            recorded = await self._find_profile(user, request.signature, self._devices[device].model)
        persistent_bytes, ephemeral_bytes, kind = self._local_sizes(request, recorded, settings, device)
        number = self._dispatcher.state.job_next
        self._dispatcher.note(CounterNote(self._dispatcher.state.session_next, number + 1))
        facts = JobFacts(
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
        if recorded is not None:
            facts.profile_persistent_bytes = recorded.persistent_bytes
            facts.profile_ephemeral_bytes = recorded.ephemeral_bytes
            facts.profile_model_hash, facts.profile_input_hash = recorded.model_hash, recorded.input_hash
            facts.boundary_rule = recorded.boundary_rule
        self._add(facts)
        return facts

    def _local_sizes(
        self, request: RunStart, recorded: Recorded | None, settings: Settings, device: DeviceId
    ) -> tuple[int, int, str]:
        """Declared bytes count where they are not below what was measured; an unmeasured job is as configured."""
        percent = 100 + settings.lanes.headroom_percent
        persistent_bytes, ephemeral_bytes = request.persistent_bytes, request.ephemeral_bytes
        if recorded is not None:
            persistent_bytes = max(persistent_bytes, recorded.persistent_bytes * percent // 100)
            ephemeral_bytes = max(ephemeral_bytes, recorded.ephemeral_bytes * percent // 100)
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

    # Finding

    async def find_job(self, process: Process, uid: int) -> JobFacts:
        """The job of a process that says hello; raises `PeerError` where it has none or is another user's."""
        jobs = self._dispatcher.state.jobs
        found = await asyncio.get_running_loop().run_in_executor(None, self._find, process.pid)
        job = jobs.get(found.job.job) if found.job is not None else None
        if job is None and found.place is not None:
            job = self._adopt(found.place, uid)
        if job is None:
            if not self._settings(self._emptiest()).daemon.local_jobs:
                raise PeerError(f"session refused: pid {process.pid}: it belongs to no job of Slurm on this node")
            root = ProcessFacts(process.pid, process.start_ticks)
            job = await self._local_job(RunStart(), uid, self._emptiest(), root)
        if job.uid != uid:
            raise PeerError(f"session refused: pid {process.pid}: job {job.job} is another user's")
        self._confine(job, process.pid)
        return job

    def _find(self, pid: int) -> Found:
        return find_job(pid, dict(self._dispatcher.state.jobs), self._list_pids)

    def _adopt(self, place: JobPlace, uid: int) -> JobFacts:
        """A process in a job of Slurm's whose Prolog did not reach us: it is taken for an unmeasured one."""
        name = place.job or place.sluid or ""
        self._log.warning("job without Prolog", job=name, uid=uid)
        device = self._emptiest()
        facts = JobFacts(
            JobId(name),
            int(place.job or 0),
            uid,
            user_name(uid),
            device=device,
            devices=[device],
            kind="exclusive",
            sluid=place.sluid or "",
        )
        self._add(facts)
        return facts

    def known_name(self, name: str) -> str | None:
        """A job as users name it: Slurm's id, `local-3`, or `3` for that."""
        return next((one for one in (name, f"local-{name}") if JobId(one) in self._dispatcher.state.jobs), None)

    def find_device(self, name: str) -> DeviceId:
        """A device by uuid, name or index."""
        for device in self._devices.values():
            if name in (device.uuid, device.name, str(device.index)):
                return device.uuid
        known = ", ".join(f"{device.index} {device.name}" for device in self._devices.values())
        raise RequestError(f"device unknown: {name}: this node has {known}")

    def device_ids(self) -> list[DeviceId]:
        return list(self._devices)

    def device_of(self, job: JobFacts, wanted: str) -> DeviceId:
        """Which of its devices a process of the job means; its first where it does not say."""
        if wanted:
            try:
                device = self.find_device(wanted)
            except RequestError:
                device = job.device
            if device in job.devices:
                return device
        return job.device

    def sweep(self) -> None:
        """End local jobs whose first process is gone and that have no live session."""
        # One pass over the sessions first: a job with a live one needs no look at /proc.
        state = self._dispatcher.state
        attached = {one.job for one in state.sessions.values() if one.process.pid and not one.view.is_leaving}
        for job in list(state.jobs.values()):
            if not job.is_local or job.is_ended or job.job in attached or any(_is_there(root) for root in job.roots):
                continue
            for session in state.live_sessions(job.job):
                self._executor.leave(session.session, "finished")
            job.is_ended = True
            self._on_job(job)
            self._dispatcher.note(JobGone(job.job))

    def _emptiest(self) -> DeviceId:
        sessions = self._dispatcher.state.sessions.values()
        counts = dict.fromkeys(self._devices, 0)
        for session in sessions:
            counts[session.device] = counts.get(session.device, 0) + 1
        return min(self._devices, key=lambda uuid: (counts[uuid], self._devices[uuid].index))

    def _add(self, facts: JobFacts) -> None:
        settings = self._settings(facts.device)
        facts.domain = settings.lanes.sharing.domain(facts.user or str(facts.uid), facts.account)
        facts.start_utc_ns, facts.start_mono_ns = self._utc_ns(), self._dispatcher.clock()
        self._dispatcher.note(JobNote(facts))
        self._on_job(facts)

    def _register(self, job: JobFacts | None, pid: int, uid: int) -> None:
        stat = read_stat(pid) if pid > 0 else None
        if job is None or stat is None or job.uid != uid:
            return
        root = ProcessFacts(pid, stat.start_ticks)
        if root not in job.roots:
            job.roots = [one for one in job.roots if _is_there(one)] + [root]
            self._dispatcher.note(JobNote(job))
        self._confine(job, pid)

    async def _wait_admitted(self, sessions: list[Any], timeout_s: float) -> bool:
        lives = [live for session in sessions if (live := self._roster.get(session)) is not None]
        waits = [asyncio.ensure_future(live.admitted.wait()) for live in lives if not live.admitted.is_set()]
        if waits:
            _, pending = await asyncio.wait(waits, timeout=timeout_s)
            for wait in pending:
                wait.cancel()
        facts = [self._dispatcher.state.sessions.get(session) for session in sessions]
        return all(one is None or one.view.is_admitted for one in facts)


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _job_class(name: str, settings: Settings) -> JobClass:
    job_class = JobClass.named(name)
    return settings.order.default_class if job_class is None else job_class


def _is_there(process: ProcessFacts) -> bool:
    stat = read_stat(process.pid)
    return stat is not None and stat.start_ticks == process.start_ticks and stat.state not in "ZX"


def adaptor_environment(
    socket_path: Path,
    adaptor_dir: Path,
    device: Device,
    user_paths: Mapping[str, str] | None = None,
    *,
    is_preloaded: bool = False,
) -> dict[str, str]:
    """What makes a job load the adaptor; PYTHONPATH and LD_PRELOAD are put before the user's own by who sets them."""
    env = {"SALUS_SOCKET": str(socket_path), "PYTHONPATH": str(adaptor_dir)}
    if device.cores:
        env["OMP_NUM_THREADS"] = str(len(device.cores))
    library = adaptor_dir / "libsalus" / "cuda" / "libcuda.so.1"
    if device.kind == "cuda" and library.exists():
        env |= {"LD_PRELOAD": str(library), "SALUS_CUDA_DRIVER": device.driver_path}
    elif is_preloaded:
        env["LD_PRELOAD"] = str(adaptor_dir / "libsalus" / "libsalus-preload.so")
    theirs = (user_paths or {}).get("PYTHONPATH", "")
    if theirs:
        env["PYTHONPATH"] = os.pathsep.join([env["PYTHONPATH"], theirs])
    return env
