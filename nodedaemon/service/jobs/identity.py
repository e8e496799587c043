"""Finds the job of a process through the kernel, never by what the process claims.

It checks three sources in this order: the cgroup that Slurm created, the processes that hooks or `salus run`
registered, and Slurm's own list of pids. A process belongs to the job of its nearest ancestor that is found there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nodedaemon.core.errors import PeerError
from nodedaemon.core.types import JobId
from nodedaemon.drivers.cgroup import JobPlace, place_of_process
from nodedaemon.drivers.process import Process, read_stat
from nodedaemon.drivers.procfs import PROC
from nodedaemon.service.jobs.local_jobs import LocalJobs
from nodedaemon.service.jobs.registry import JobRegistry
from nodedaemon.service.jobs.unannounced_jobs import UnannouncedJobs
from nodedaemon.service.journal.state import JobFacts, ProcessFacts
from nodedaemon.wire.control import RunStart

#: No launcher creates a deeper process tree.
ANCESTORS_MAX = 64


@dataclass(frozen=True, slots=True)
class ProcessJob:
    """The job of a process. For a Slurm job that the daemon does not know, `job` is None and `place` names it."""

    job: JobFacts | None
    place: JobPlace | None


def find_job(
    pid: int, jobs: Mapping[JobId, JobFacts], list_pids: Callable[[], Mapping[int, JobPlace]], proc: Path = PROC
) -> ProcessJob:
    """Find the job of a live process. `list_pids` comes last, because it runs a Slurm command."""
    place = place_of_process(pid, proc)
    if place is not None:
        return ProcessJob(job_at(place, jobs), place)
    lineage = ancestors(pid, proc)
    roots = {root: job for job in jobs.values() if not job.is_ended for root in job.roots}
    for process in lineage:
        if process in roots:
            return ProcessJob(roots[process], None)
    listed = list_pids()
    for process in lineage:
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
    lineage: list[ProcessFacts] = []
    while pid > 1 and len(lineage) < ANCESTORS_MAX:
        stat = read_stat(pid, proc)
        if stat is None:
            break
        lineage.append(ProcessFacts(pid, stat.start_ticks))
        pid = stat.parent_pid
    return lineage


class JobFinder:
    """Finds the job of a process that wants a session, and adds the job if this daemon does not know it yet."""

    def __init__(self, registry: JobRegistry, local_jobs: LocalJobs, unannounced_jobs: UnannouncedJobs) -> None:
        self._registry = registry
        self._local_jobs = local_jobs
        self._unannounced_jobs = unannounced_jobs
        self._shell = registry.shell

    async def find_job(self, process: Process, uid: int) -> JobFacts:
        """The job of a process that sent a HELLO. Raises `PeerError` if it has none, or one of another user."""
        jobs = dict(self._registry.jobs)
        allows_local = self._shell.configuration.settings.daemon.local_jobs
        may_be_slurm = not allows_local or any(not job.is_local for job in jobs.values())
        list_pids = self._shell.slurm.list_pids if may_be_slurm else dict
        # In a thread: it reads /proc and may run a Slurm command.
        found = await asyncio.to_thread(find_job, process.pid, jobs, list_pids)
        job = self._registry.get(found.job.job) if found.job is not None else None
        if job is None and found.place is not None:
            job = await self._unannounced_jobs.add(found.place)
        if job is None:
            if not allows_local:
                raise PeerError(f"session refused: pid {process.pid}: it belongs to no Slurm job on this node")
            root = ProcessFacts(process.pid, process.start_ticks)
            job = await self._local_jobs.add(RunStart(), uid, self._shell.devices.with_fewest_sessions(), root)
        if job.uid != uid:
            raise PeerError(f"session refused: pid {process.pid}: job {job.job} belongs to another user")
        self._registry.confine(job, process.pid)
        return job
