"""Compares the jobs that the daemon knows with the files that Prolog and Epilog leave beside its socket.

A Prolog writes `jobs/ID` before it asks and an Epilog removes it before it asks (docs/protocol.md). What happened while
the daemon was away is found here: a file without a job is a missed start, a job without a file a missed end. After a
reboot the folder is gone with /run, and with it every job of before.

An Epilog moves the file to `ended/ID`. slurmd skips the Prolog of a job that starts again on its node while it still
has the id in memory, if the launch overtakes the Prolog's message (seen on 22.05): then the SPANK plugin finds the
ended file and asks, and what the Prolog would have told is had from slurmctld.

A Prolog gives Slurm a few seconds to name the job's segment. Where many jobs start at once that is too short; without
the segment the job would pass for an unmeasured one and wait for the whole device beside jobs that Slurm put there.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from nodedaemon.core.errors import SalusError
from nodedaemon.core.types import JobId
from nodedaemon.drivers.slurm import StartWord
from nodedaemon.service.jobs.registry import JobEnd, JobStart, TaskRequest, user_name
from nodedaemon.service.journal.state import JobFacts

FILE_BYTES_MAX = 16 * 1024
#: Much longer than slurmd remembers an id (cred_expire, two minutes unless set otherwise).
ENDED_KEPT_S = 3600
#: Between two questions to a Slurm that is silent.
ASK_AGAIN_S = 0.5


class Markers:
    def __init__(
        self,
        folder: Callable[[], Path],
        known: Callable[[], dict[JobId, JobFacts]],
        *,
        start: Callable[[JobStart], Awaitable[Any]],
        end: Callable[[JobEnd], Awaitable[Any]],
        ask: Callable[[JobId], Awaitable[StartWord | None]],
        log: Any,
    ) -> None:
        self._folder = folder
        self._known = known
        self._start = start
        self._end = end
        self._ask = ask
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
        self._clear_ended()

    async def announce(self, task: TaskRequest) -> None:
        """Take up a job whose task starts and that is not known: by its Prolog's file, else by slurmctld's word."""
        job = JobId(task.job)
        try:
            request = (self.read() or {}).get(job) or await self._ask_start(task)
            if request is not None:
                await self._start(request)
        except (OSError, SalusError) as error:
            self._log.warning("job without Prolog: not taken up", job=job, why=str(error))

    async def _ask_start(self, task: TaskRequest) -> JobStart | None:
        job = JobId(task.job)
        word = await self._ask(job)
        if word is None:
            return None
        request = JobStart(
            job=job, uid=task.uid, user=user_name(task.uid), gpus=task.cuda, restart=word.restart_count,
            partition=word.partition, account=word.account, qos=word.qos, segment=word.segment,
        )  # fmt: skip
        self._log.warning("job without Prolog: taken up by its segment", job=job, restart=word.restart_count)
        # First the file, as a Prolog does: a job without one would be ended.
        self._leave(request)
        return request

    async def complete(self, request: JobStart, patience_s: float) -> JobStart:
        """What a Prolog to which Slurm gave no answer would have told; asks once, then till the time is up.

        The request as it came where slurmctld stays silent, or says that the job is not ours.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + patience_s
        why = ""
        while True:
            try:
                word = await self._ask(JobId(request.job))
                break
            except (OSError, SalusError) as error:
                why = str(error)
            if loop.time() + ASK_AGAIN_S >= deadline_s:
                self._log.warning("job without segment: it counts as unmeasured", job=request.job, why=why)
                return request
            await asyncio.sleep(ASK_AGAIN_S)
        if word is None:
            return request
        self._log.info("job without segment: slurmctld told it", job=request.job)
        return msgspec.structs.replace(
            request, restart=max(request.restart, word.restart_count), partition=word.partition, account=word.account,
            qos=word.qos, segment=word.segment,
        )  # fmt: skip

    def _leave(self, request: JobStart) -> None:
        folder = self._folder()
        folder.mkdir(mode=0o755, exist_ok=True)
        new = folder / f"{request.job}.new"
        new.write_bytes(msgspec.json.encode(request))
        new.replace(folder / request.job)
        (folder.parent / "ended" / request.job).unlink(missing_ok=True)

    def _clear_ended(self) -> None:
        """Forget ended jobs that no slurmd remembers either."""
        with contextlib.suppress(OSError):
            for file in (self._folder().parent / "ended").iterdir():
                if time.time() - file.stat().st_mtime > ENDED_KEPT_S:
                    file.unlink(missing_ok=True)

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
