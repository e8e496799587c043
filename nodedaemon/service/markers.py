"""Compares the jobs that the daemon knows with the files that Prolog and Epilog leave beside its socket.

A Prolog writes `jobs/ID` before it asks and an Epilog removes it before it asks (docs/protocol.md). What happened while
the daemon was away is found here: a file without a job is a missed start, a job without a file a missed end. After a
reboot the folder is gone with /run, and with it every job of before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from nodedaemon.core.errors import SalusError
from nodedaemon.core.types import JobId
from nodedaemon.service.jobs import JobEnd, JobStart
from nodedaemon.service.state import JobFacts

FILE_BYTES_MAX = 16 * 1024


class Markers:
    def __init__(
        self,
        folder: Callable[[], Path],
        known: Callable[[], dict[JobId, JobFacts]],
        *,
        start: Callable[[JobStart], Awaitable[Any]],
        end: Callable[[JobEnd], Awaitable[Any]],
        log: Any,
    ) -> None:
        self._folder = folder
        self._known = known
        self._start = start
        self._end = end
        self._log = log
        # Seen without a file once: a Prolog that is just being answered has a file, but a reader may come between.
        self._suspects: set[JobId] = set()

    async def reconcile(self) -> None:
        """One look; a job without a file is ended at the second."""
        found = self.read()
        if found is None:
            return
        for job, request in found.items():
            facts = self._known().get(job)
            if facts is None or request.restart > facts.restart_count:
                self._log.info("job was not announced", job=job)
                try:
                    await self._start(request)
                except SalusError as error:
                    self._log.warning("job not taken up", job=job, why=str(error))
        missing = {
            job
            for job, facts in self._known().items()
            if not facts.is_local and not facts.is_ended and job not in found
        }
        for job in missing & self._suspects:
            self._log.info("job ended unseen", job=job)
            await self._end(JobEnd(job))
        self._suspects = missing - self._suspects

    def read(self) -> dict[JobId, JobStart] | None:
        """The requests in the folder; None where no Prolog has ever made one. What cannot be read is left out."""
        try:
            files = sorted(self._folder().iterdir())
        except OSError:
            return None
        found = {}
        for file in files:
            if not file.name.isdigit():
                continue
            try:
                with file.open("rb") as stream:
                    request = msgspec.json.decode(stream.read(FILE_BYTES_MAX), type=JobStart)
            except (OSError, msgspec.MsgspecError) as error:
                self._log.warning("job's file not read", file=file.name, why=str(error))
                request = JobStart(job=file.name, uid=-1)
            if request.job == file.name:
                request.wait_ms = 0
                found[JobId(file.name)] = request
        return {job: request for job, request in found.items() if request.uid >= 0 or job in self._known()}

    def forget(self, job: JobId) -> None:
        """Remove a job's file, as the Epilog that did not come would have."""
        (self._folder() / job).unlink(missing_ok=True)

    async def run(self, interval_s: Callable[[], float], gathered: Callable[[], Awaitable[None]]) -> None:
        await gathered()
        while True:
            await self.reconcile()
            await asyncio.sleep(interval_s())
