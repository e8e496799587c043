"""Finds the job of a process through the kernel, never by what the process claims.

It looks at three things in this order: the cgroup that Slurm made, the processes that hooks or `salus run` registered
(the process itself or an ancestor), and Slurm's own list of pids. A process that is in none of them has no job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodedaemon.core.errors import PeerError
from nodedaemon.core.types import JobId
from nodedaemon.drivers.cgroup import JobPlace, place_of_process
from nodedaemon.drivers.process import PROC, Process, read_stat
from nodedaemon.service.control.configuration import ActiveConfiguration
from nodedaemon.service.devices.directory import DeviceDirectory
from nodedaemon.service.jobs.local_jobs import LocalJobs
from nodedaemon.service.jobs.registry import JobRegistry
from nodedaemon.service.jobs.slurm import NodeSlurm
from nodedaemon.service.journal.state import JobFacts, ProcessFacts
from nodedaemon.wire.control import RunStart
from nodedaemon.wire.users import user_name

#: No launcher makes a deeper process tree.
ANCESTORS_MAX = 64


@dataclass(frozen=True, slots=True)
class ProcessJob:
    """The job of a process. If Slurm has a job that we do not know, `job` is None and `place` names it."""

    job: JobFacts | None
    place: JobPlace | None


def find_job(
    pid: int, jobs: Mapping[JobId, JobFacts], list_pids: Callable[[], Mapping[int, JobPlace]], proc: Path = PROC
) -> ProcessJob:
    """Find the job of a live process. `list_pids` comes last, because it runs a command of Slurm."""
    place = place_of_process(pid, proc)
    if place is not None:
        return ProcessJob(job_at(place, jobs), place)
    line = ancestors(pid, proc)
    roots = {root: job for job in jobs.values() if not job.is_ended for root in job.roots}
    for process in line:
        if process in roots:
            return ProcessJob(roots[process], None)
    if not any(not job.is_local for job in jobs.values()):
        return ProcessJob(None, None)
    listed = list_pids()
    for process in line:
        if process.pid in listed:
            return ProcessJob(job_at(listed[process.pid], jobs), listed[process.pid])
    return ProcessJob(None, None)


def job_at(place: JobPlace, jobs: Mapping[JobId, JobFacts]) -> JobFacts | None:
    for job in jobs.values():
        if job.is_ended or job.is_local:
            continue
        if (place.job is not None and job.job == place.job) or (place.sluid is not None and job.sluid == place.sluid):
            return job
    return None


def ancestors(pid: int, proc: Path = PROC) -> list[ProcessFacts]:
    """The process and its ancestors, nearest first, without init."""
    line: list[ProcessFacts] = []
    while pid > 1 and len(line) < ANCESTORS_MAX:
        stat = read_stat(pid, proc)
        if stat is None:
            break
        line.append(ProcessFacts(pid, stat.start_ticks))
        pid = stat.parent_pid
    return line


class JobFinder:
    """Finds the job of a process that wants a session, and adds the job if this daemon does not know it yet."""

    def __init__(
        self,
        registry: JobRegistry,
        local_jobs: LocalJobs,
        devices: DeviceDirectory,
        slurm: NodeSlurm,
        configuration: ActiveConfiguration,
        log: Any,
    ) -> None:
        self._registry = registry
        self._local_jobs = local_jobs
        self._devices = devices
        self._slurm = slurm
        self._configuration = configuration
        self._log = log

    async def find_job(self, process: Process, uid: int) -> JobFacts:
        """The job of a process that says hello. Raises `PeerError` if it has none, or one of another user."""
        jobs = dict(self._registry.jobs)
        # In a thread: it reads /proc and may run a command of Slurm.
        found = await asyncio.to_thread(find_job, process.pid, jobs, self._slurm.list_pids)
        job = self._registry.get(found.job.job) if found.job is not None else None
        if job is None and found.place is not None:
            job = self._add_unannounced(found.place, uid)
        if job is None:
            if not self._configuration.settings.daemon.local_jobs:
                raise PeerError(f"session refused: pid {process.pid}: it belongs to no job of Slurm on this node")
            root = ProcessFacts(process.pid, process.start_ticks)
            job = await self._local_jobs.add(RunStart(), uid, self._devices.with_fewest_sessions(), root)
        if job.uid != uid:
            raise PeerError(f"session refused: pid {process.pid}: job {job.job} belongs to another user")
        self._registry.confine(job, process.pid)
        return job

    def _add_unannounced(self, place: JobPlace, uid: int) -> JobFacts:
        """Add a job of Slurm whose Prolog did not reach us, as one that was never measured."""
        name = place.job or place.sluid or ""
        self._log.warning("job without Prolog", job=name, uid=uid)
        device = self._devices.with_fewest_sessions()
        job = JobFacts(
            job=JobId(name),
            number=int(place.job or 0),
            uid=uid,
            user=user_name(uid),
            device=device,
            devices=[device],
            kind="exclusive",
            sluid=place.sluid or "",
        )
        self._registry.add(job)
        return job
