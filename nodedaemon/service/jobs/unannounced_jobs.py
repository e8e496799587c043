"""Slurm jobs whose Prolog did not reach this daemon. The daemon learns of them from the HELLO of a process.

A process in a job's cgroup proves that the job runs here, not that Slurm gave it a device. So a job is added only if a
Prolog's file or slurmctld confirms that it is ours. If slurmctld does not answer, the process waits, up to
`PrologTimeout`, and is then refused. Meanwhile nothing is allocated for it.

Any process can send a HELLO at any time. So at most one request per job and `QUESTIONS_MAX` in total are sent to
slurmctld at a time, and for `REFUSAL_KEPT_S` it is not asked again about a refused job.
"""

from __future__ import annotations

import asyncio
import time

from nodedaemon.core.errors import OperatingError, PeerError
from nodedaemon.core.types import JobId
from nodedaemon.drivers.cgroup import JobPlace
from nodedaemon.service.jobs.registry import JobRegistry
from nodedaemon.service.jobs.slurm_jobs import SlurmJobs
from nodedaemon.service.journal.state import JobFacts
from nodedaemon.wire.logs import log

#: Requests to slurmctld at the same time.
QUESTIONS_MAX = 4
#: Time between two requests to a slurmctld that does not answer.
RETRY_INTERVAL_S = 2.0
#: How long a refusal is repeated without another request, and how many refused jobs are remembered.
REFUSAL_KEPT_S = 10.0
REFUSALS_MAX = 1024


class UnannouncedJobs:
    def __init__(self, registry: JobRegistry, slurm_jobs: SlurmJobs) -> None:
        self._registry = registry
        self._slurm_jobs = slurm_jobs
        self._slurm, self._configuration = registry.shell.slurm, registry.shell.configuration
        self._questions = asyncio.Semaphore(QUESTIONS_MAX)
        self._asking: dict[JobId, asyncio.Lock] = {}
        #: Until when a refusal is repeated, and its reason.
        self._refusals: dict[JobId, tuple[float, str]] = {}

    async def add(self, place: JobPlace) -> JobFacts:
        """The job at `place`, once it is confirmed. Raises `PeerError` if it is not."""
        name = JobId(place.job or place.sluid or "")
        lock = self._asking.setdefault(name, asyncio.Lock())
        try:
            async with lock:
                return self._registry.get(name) or await self._confirm(name)
        finally:
            if not lock.locked():
                self._asking.pop(name, None)

    async def _confirm(self, name: JobId) -> JobFacts:
        until_s, reason = self._refusals.get(name, (0.0, ""))
        if time.monotonic() < until_s:
            raise PeerError(reason)
        try:
            job = await self._ask(name)
        except OperatingError as error:
            raise self._refuse(name, f"slurmctld does not confirm that it is a Salus job: {error}") from error
        if job is None:
            raise self._refuse(name, "Slurm gave it no share of a device; submit it with --gres=salus:1")
        log.warning("job without Prolog", job=name, uid=job.uid)
        return job

    async def _ask(self, name: JobId) -> JobFacts | None:
        deadline_s = time.monotonic() + self._configuration.settings.slurm.prolog_timeout_ns / 1e9
        while True:
            try:
                async with self._questions:
                    return await self._slurm_jobs.find_unannounced(name)
            except OperatingError:
                if time.monotonic() + RETRY_INTERVAL_S > deadline_s or not self._slurm.commands().is_installed:
                    raise
            await asyncio.sleep(RETRY_INTERVAL_S)

    def _refuse(self, name: JobId, why: str) -> PeerError:
        while len(self._refusals) >= REFUSALS_MAX:
            self._refusals.pop(next(iter(self._refusals)))
        reason = f"session refused: job {name}: {why}"
        self._refusals[name] = time.monotonic() + REFUSAL_KEPT_S, reason
        return PeerError(reason)
