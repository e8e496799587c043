"""Finds out who stopped a session: Slurm, or the job itself.

The state of the process does not show this, so the daemon asks slurmctld. The engine never ends a session of a
suspended job, but it ends a session that stopped itself and keeps memory that other jobs need. Without an answer, a job
counts as suspended.
"""

from __future__ import annotations

from nodedaemon.core import events
from nodedaemon.core.errors import OperatingError
from nodedaemon.core.types import JobId
from nodedaemon.service.shell import Shell
from nodedaemon.wire.logs import log

#: Jobs that one comparison asks slurmctld about, lowest id first.
JOBS_ASKED_MAX = 8


class Suspensions:
    def __init__(self, shell: Shell) -> None:
        self._slurm, self._dispatcher = shell.slurm, shell.dispatcher
        self._fault = ""

    async def compare(self) -> None:
        """Ask once about the jobs that may be suspended. A fault of Slurm is logged once and changes nothing."""
        slurm = self._slurm.commands()
        jobs = self._stopped_jobs()
        if not jobs or not slurm.is_installed:
            return
        try:
            for job in jobs[:JOBS_ASKED_MAX]:
                state = await slurm.job(job)
                if state.state != "SUSPENDED":
                    self._report_self_stopped(job)
        except OperatingError as error:
            if str(error) != self._fault:
                log.warning("suspended jobs not compared with Slurm", why=str(error))
            self._fault = str(error)
        else:
            self._fault = ""

    def _stopped_jobs(self) -> list[JobId]:
        sessions = self._dispatcher.state.sessions.values()
        return sorted({facts.job for facts in sessions if facts.view.is_suspended})

    def _report_self_stopped(self, job: JobId) -> None:
        # The session may have continued while slurmctld was asked.
        for facts in self._dispatcher.state.live_sessions(job):
            if facts.view.is_suspended:
                log.info("session stopped by its job", job=job, session=facts.session)
                self._dispatcher.submit(events.SessionStopped(facts.session, is_suspended=False))
