"""The files that the Prolog and the Epilog leave next to the daemon's socket, and the starts and ends that they show.

A Prolog writes `jobs/ID` before it sends its request, and an Epilog moves that file to `ended/ID` before it sends its
own (docs/protocol.md). The files show what happened while the daemon was down: a file without a job is a missed start,
a job without a file is a missed end. A reboot clears /run, and with it the files of all earlier jobs.

The `ended` files are for a job that starts again on its node while slurmd still remembers its id. If the launch then
arrives before the Prolog's message, slurmd skips the Prolog (observed on Slurm 22.05). The SPANK plugin finds the ended
file and asks the daemon, which gets from slurmctld what the Prolog would have sent.

A Prolog waits only a few seconds for Slurm to report the job's segment. That is too short when many jobs start at once.
Without its segment a job would count as unmeasured and wait for the whole device, so the daemon asks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path

import msgspec

from nodedaemon.core.errors import OperatingError, SalusError
from nodedaemon.core.types import JobId
from nodedaemon.service.control.configuration import ActiveConfiguration
from nodedaemon.service.jobs.slurm import NodeSlurm
from nodedaemon.wire.control import JobStart
from nodedaemon.wire.logs import log
from nodedaemon.wire.users import user_name

FILE_BYTES_MAX = 16 * 1024
#: Much longer than slurmd remembers an id: cred_expire, two minutes by default.
ENDED_KEPT_S = 3600
#: Time between two requests to a Slurm that does not answer.
RETRY_INTERVAL_S = 0.5


class PrologFiles:
    def __init__(self, configuration: ActiveConfiguration) -> None:
        self._configuration = configuration

    @property
    def _folder(self) -> Path:
        return self._configuration.run_directory / "jobs"

    @property
    def _ended(self) -> Path:
        return self._configuration.run_directory / "ended"

    def read(self) -> dict[JobId, JobStart] | None:
        """The request in each file, with uid -1 if it is not readable; None if no Prolog ever wrote a file."""
        try:
            files = sorted(self._folder.iterdir())
        except OSError:
            return None
        requests = {}
        for file in files:
            if not file.name.isdigit():
                continue
            try:
                with file.open("rb") as stream:
                    request = msgspec.json.decode(stream.read(FILE_BYTES_MAX), type=JobStart)
            except (OSError, msgspec.MsgspecError) as error:
                log.warning("job file not readable", file=file.name, why=str(error))
                request = JobStart(job=file.name, uid=-1)
            if request.job == file.name:
                request.wait_ms = 0
                requests[JobId(file.name)] = request
        return requests

    def write(self, request: JobStart) -> None:
        self._folder.mkdir(mode=0o755, exist_ok=True)
        new = self._folder / f"{request.job}.new"
        # Only root may read it, as with the Prolog's own file.
        with open(new, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(msgspec.json.encode(request))
        new.replace(self._folder / request.job)
        (self._ended / request.job).unlink(missing_ok=True)

    def remove(self, job: JobId) -> None:
        """Remove the file of a job whose Epilog did not run."""
        (self._folder / job).unlink(missing_ok=True)

    def clear_ended(self) -> None:
        """Remove the files of ended jobs that slurmd does not remember any more."""
        with contextlib.suppress(OSError):
            for file in self._ended.iterdir():
                if time.time() - file.stat().st_mtime > ENDED_KEPT_S:
                    file.unlink(missing_ok=True)


class JobStarts:
    """Finds or completes the start request of a job with slurmctld's answer."""

    def __init__(self, files: PrologFiles, slurm: NodeSlurm) -> None:
        self.files = files
        self._slurm = slurm

    async def find(self, job: JobId, gpus: str = "") -> JobStart | None:
        """The start request of a job that was not announced, from the Prolog's file or from slurmctld.

        None if slurmctld says that the job is not ours. Raises `OperatingError` if it does not answer.
        """
        request = (self.files.read() or {}).get(job)
        if request is not None and request.uid >= 0:
            return request
        answer = await self._slurm.commands().start(job)
        if answer is None:
            return None
        request = JobStart(job=job, user=user_name(answer.uid), gpus=gpus, **msgspec.structs.asdict(answer))
        try:
            # A job without a file would be ended, so it gets one, as from its Prolog.
            self.files.write(request)
        except OSError as error:
            raise OperatingError(f"job file: {job}: {error.strerror}; check the directory of DaemonSocket") from error
        log.warning("job without Prolog: added from its segment", job=job, restart=answer.restart)
        return request

    async def complete(self, request: JobStart, timeout_s: float) -> JobStart:
        """Add what the Prolog did not get from Slurm in time. Asks at least once, and repeats until the time is up.

        Returns the request unchanged if slurmctld does not answer, or if the job is not ours.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                answer = await self._slurm.commands().start(JobId(request.job))
                break
            except (OSError, SalusError) as error:
                why = str(error)
            if time.monotonic() + RETRY_INTERVAL_S >= deadline_s:
                log.warning("job without segment: it counts as unmeasured", job=request.job, why=why)
                return request
            await asyncio.sleep(RETRY_INTERVAL_S)
        if answer is None:
            return request
        log.info("job without segment: slurmctld has reported it", job=request.job)
        answer.restart = max(request.restart, answer.restart)
        return msgspec.structs.replace(request, **msgspec.structs.asdict(answer))
