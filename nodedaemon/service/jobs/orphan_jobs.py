"""Finds jobs whose Epilog never ran, and suspended jobs, by comparing the daemon's jobs with Slurm's steps.

`scontrol listpids` names the processes of every step on the node. A job without any process is a suspect: it may be an
allocation between two steps, or its Epilog may have failed. Only slurmctld can tell, so the daemon asks it about
suspects and ends a job only if slurmctld says that it is over. Without an answer no job is ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from nodedaemon.core.errors import OperatingError
from nodedaemon.core.types import JobId
from nodedaemon.drivers.process import is_stopped
from nodedaemon.drivers.slurm import JobState
from nodedaemon.service.devices.holders import HolderWatch
from nodedaemon.service.jobs.registry import is_alive
from nodedaemon.service.jobs.slurm_jobs import SlurmJobs
from nodedaemon.service.journal.state import JobFacts, ProcessFacts
from nodedaemon.service.shell import Shell
from nodedaemon.wire.logs import log

#: Suspects that one comparison asks slurmctld about. The next comparisons ask about the rest.
JOBS_ASKED_MAX = 8


class StepCommands(Protocol):
    """The commands of `drivers.slurm` that this module needs."""

    @property
    def is_installed(self) -> bool: ...

    async def step_pids(self) -> dict[JobId, set[int]]: ...

    async def job(self, job: JobId) -> JobState: ...


class OrphanJobs:
    def __init__(self, shell: Shell, slurm_jobs: SlurmJobs, holders: HolderWatch) -> None:
        self._slurm, self._state = shell.slurm, shell.dispatcher.state
        self._slurm_jobs = slurm_jobs
        self._holders = holders
        self._suspects: dict[JobId, int] = {}
        self._asked_look: dict[JobId, int] = {}
        self._look_count = 0
        self._suspended: set[JobId] = set()
        self._stepless: set[JobId] = set()
        self._fault = ""

    async def compare(self) -> None:
        """Compare once. A fault of Slurm is logged once and changes nothing."""
        jobs = {job: facts for job, facts in self._state.jobs.items() if not facts.is_local and not facts.is_ended}
        slurm: StepCommands = self._slurm.commands()
        if not jobs or not slurm.is_installed:
            return
        try:
            listed = await slurm.step_pids()
            self._watch_suspension(jobs, listed)
            await self._end_missed(slurm, self._find_suspects(jobs, listed))
        except OperatingError as error:
            if str(error) != self._fault:
                log.warning("jobs not compared with Slurm", why=str(error))
            self._fault = str(error)
        else:
            self._fault = ""

    def _watch_suspension(self, jobs: dict[JobId, JobFacts], listed: dict[JobId, set[int]]) -> None:
        """A job is suspended if every process of its steps is stopped."""
        suspended = {job for job in jobs if _all_stopped(listed.get(job, ()))}
        for job in suspended - self._suspended:
            log.info("job suspended", job=job)
        for job in self._suspended - suspended:
            if job in jobs:
                log.info("job resumed", job=job)
        if suspended != self._suspended:
            # Check now: stopped sessions must not block others until the next reading.
            self._holders.look_at_processes()
        self._suspended = suspended

    def _find_suspects(self, jobs: dict[JobId, JobFacts], listed: dict[JobId, set[int]]) -> list[JobId]:
        """Jobs without any process in two comparisons in a row, in the same run."""
        stepless = {job for job in jobs if not listed.get(job)}
        alive = {job for job in stepless if any(map(is_alive, self._processes(jobs[job])))}
        for job in alive - self._stepless:
            log.warning("job has processes but no slurmstepd", job=job)
        self._stepless = alive
        found = {job: jobs[job].restart_count for job in stepless - alive}
        confirmed = [job for job, restart in found.items() if self._suspects.get(job) == restart]
        self._suspects = found
        # Start with the job that was asked about longest ago: many idle allocations must not hide one that is over.
        self._asked_look = {job: look for job, look in self._asked_look.items() if job in found}
        return sorted(confirmed, key=lambda job: self._asked_look.get(job, 0))

    def _processes(self, job: JobFacts) -> Iterable[ProcessFacts]:
        yield from job.roots
        for session in self._state.live_sessions(job.job):
            yield session.process

    async def _end_missed(self, slurm: StepCommands, suspects: list[JobId]) -> None:
        self._look_count += 1
        for job in suspects[:JOBS_ASKED_MAX]:
            self._asked_look[job] = self._look_count
            state = await slurm.job(job)
            facts = self._state.jobs.get(job)
            # The job may have ended or restarted while slurmctld was asked.
            if facts is None or facts.is_ended or facts.restart_count != self._suspects.get(job):
                continue
            if state.is_over(facts.restart_count):
                log.warning("job ended without its Epilog", job=job, state=state.state or "unknown to Slurm")
                await self._slurm_jobs.end_without_epilog(job)


def _all_stopped(pids: Iterable[int]) -> bool:
    states = [state for pid in pids if (state := is_stopped(pid)) is not None]
    return bool(states) and all(states)
