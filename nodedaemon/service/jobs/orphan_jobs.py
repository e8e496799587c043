"""Compares the jobs that the daemon knows with Slurm's own steps, for what no hook tells of.

`scontrol listpids` names the processes of every step on the node. A job of ours that has none, and no process that we
know, is a suspect: an allocation between two steps looks the same as one whose Epilog never came. Only slurmctld can
tell them apart, so it is asked about suspects, and a job is ended on its word alone. Silence ends nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from nodedaemon.core.errors import OperatingError
from nodedaemon.core.types import JobId
from nodedaemon.drivers.process import read_stat
from nodedaemon.drivers.slurm import JobWord
from nodedaemon.service.jobs.registry import JobEnd
from nodedaemon.service.journal.state import JobFacts, ProcessFacts, ShellState

#: Suspects asked about in one look: a node that lost many at once is cleared over several.
JOBS_ASKED_MAX = 8


class SlurmWord(Protocol):
    """The commands of the node; tests have a twin."""

    @property
    def is_there(self) -> bool: ...

    async def step_pids(self) -> dict[JobId, set[int]]: ...

    async def job(self, job: JobId) -> JobWord: ...


class StepWatch:
    """`end` carries out a missed end; `forget` removes the file that a Prolog left, as an Epilog would have.

    `also` is done after each look: what else Slurm must be told now and then.
    """

    def __init__(
        self,
        slurm: Callable[[], SlurmWord],
        state: ShellState,
        *,
        end: Callable[[JobEnd], Awaitable[Any]],
        forget: Callable[[JobId], None],
        look_at_processes: Callable[[], None],
        also: Callable[[], Awaitable[None]],
        log: Any,
    ) -> None:
        self._slurm = slurm
        self._state = state
        self._end = end
        self._forget = forget
        self._look_at_processes = look_at_processes
        self._also = also
        self._log = log
        self._suspects: dict[JobId, int] = {}
        self._asked: dict[JobId, int] = {}
        self._look_count = 0
        self._suspended: set[JobId] = set()
        self._stepless: set[JobId] = set()
        self._fault = ""

    async def run(self, interval_s: Callable[[], float], gathered: Callable[[], Awaitable[None]]) -> None:
        await gathered()
        while True:
            await self.look()
            await self._also()
            await asyncio.sleep(interval_s())

    async def look(self) -> None:
        """One comparison. Slurm's faults are told once and leave everything as it is."""
        jobs = {job: facts for job, facts in self._state.jobs.items() if not facts.is_local and not facts.is_ended}
        slurm = self._slurm()
        if not jobs or not slurm.is_there:
            return
        try:
            listed = await slurm.step_pids()
            self._watch_suspension(jobs, listed)
            await self._end_missed(slurm, self._find_suspects(jobs, listed))
        except OperatingError as error:
            if str(error) != self._fault:
                self._log.warning("jobs not compared with Slurm's", why=str(error))
            self._fault = str(error)
        else:
            self._fault = ""

    def _watch_suspension(self, jobs: dict[JobId, JobFacts], listed: dict[JobId, set[int]]) -> None:
        """A suspended job: every process of its steps is stopped."""
        suspended = {job for job in jobs if _all_stopped(listed.get(job, ()))}
        for job in suspended - self._suspended:
            self._log.info("job suspended", job=job)
        for job in self._suspended - suspended:
            if job in jobs:
                self._log.info("job resumed", job=job)
        if suspended != self._suspended:
            # Its sessions must not keep mates waiting until the next reading.
            self._look_at_processes()
        self._suspended = suspended

    def _find_suspects(self, jobs: dict[JobId, JobFacts], listed: dict[JobId, set[int]]) -> list[JobId]:
        """Jobs without any process at two looks in a row, with the same run."""
        stepless = {job for job in jobs if not listed.get(job)}
        alive = {job for job in stepless if any(map(_is_alive, self._processes(jobs[job])))}
        for job in alive - self._stepless:
            self._log.warning("job has processes but no slurmstepd", job=job)
        self._stepless = alive
        found = {job: jobs[job].restart_count for job in stepless - alive}
        confirmed = [job for job, restart in found.items() if self._suspects.get(job) == restart]
        self._suspects = found
        # Who was asked about longest ago comes first: many idle allocations must not hide one that is over.
        self._asked = {job: look for job, look in self._asked.items() if job in found}
        return sorted(confirmed, key=lambda job: self._asked.get(job, 0))

    def _processes(self, job: JobFacts) -> Iterable[ProcessFacts]:
        yield from job.roots
        for session in self._state.live_sessions(job.job):
            yield session.process

    async def _end_missed(self, slurm: SlurmWord, suspects: list[JobId]) -> None:
        self._look_count += 1
        for job in suspects[:JOBS_ASKED_MAX]:
            self._asked[job] = self._look_count
            word = await slurm.job(job)
            facts = self._state.jobs.get(job)
            # It may have ended, or started again, while slurmctld was asked.
            if facts is None or facts.is_ended or facts.restart_count != self._suspects.get(job):
                continue
            if word.is_over(facts.restart_count):
                self._log.warning("job ended without its Epilog", job=job, state=word.state or "unknown to Slurm")
                self._forget(job)
                await self._end(JobEnd(job))


def _is_alive(process: ProcessFacts) -> bool:
    stat = read_stat(process.pid) if process.pid > 0 else None
    return stat is not None and stat.start_ticks == process.start_ticks and stat.state not in "ZX"


def _all_stopped(pids: Iterable[int]) -> bool:
    states = [stat.state for pid in pids if (stat := read_stat(pid)) is not None]
    return bool(states) and all(state in "Tt" for state in states)
