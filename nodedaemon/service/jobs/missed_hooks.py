"""Compares jobs with the Prolog's files: adds jobs whose Prolog was missed, and ends jobs whose Epilog was missed."""

from __future__ import annotations

from nodedaemon.core.errors import SalusError
from nodedaemon.core.types import JobId
from nodedaemon.service.jobs.prolog_files import PrologFiles
from nodedaemon.service.jobs.registry import JobRegistry
from nodedaemon.service.jobs.slurm_jobs import SlurmJobs
from nodedaemon.wire.control import JobEnd
from nodedaemon.wire.logs import log


class MissedHooks:
    def __init__(self, files: PrologFiles, registry: JobRegistry, slurm_jobs: SlurmJobs) -> None:
        self._files = files
        self._registry = registry
        self._slurm_jobs = slurm_jobs
        # A job may start after the files were read, so it must lack its file in two comparisons in a row.
        self._without_file: set[JobId] = set()

    async def compare(self) -> None:
        requests = self._files.read()
        if requests is None:
            return
        for job, request in requests.items():
            facts = self._registry.get(job)
            if request.uid >= 0 and (facts is None or request.restart > facts.restart_count):
                log.info("job was not announced", job=job)
                try:
                    await self._slurm_jobs.job_start(request)
                except SalusError as error:
                    log.warning("job not added", job=job, why=str(error))
        without_file = {
            job
            for job, facts in self._registry.jobs.items()
            if not facts.is_local and not facts.is_ended and job not in requests
        }
        for job in without_file & self._without_file:
            log.info("job ended while salusd was down", job=job)
            await self._slurm_jobs.job_end(JobEnd(job))
        self._without_file = without_file - self._without_file
        self._files.clear_ended()
