"""Adds the time that a job waited at the gate to its time limit, if `ExtendTime` is set.

Slurm counts limits in minutes, so a job gets one more minute for each full minute that it has waited. The minutes
already added are kept with the job and survive a restart. A change that Slurm refuses is retried in the next interval.
No job gets more than `ExtendTimeMax` in total.
"""

from __future__ import annotations

from nodedaemon.core.errors import OperatingError
from nodedaemon.core.state.sessions import SessionState
from nodedaemon.core.state.snapshots import SessionSnapshot
from nodedaemon.core.types import MINUTE_NS, JobId, SessionId
from nodedaemon.service.journal.state import JobFacts
from nodedaemon.service.shell import Shell
from nodedaemon.wire.logs import log


class TimeLimits:
    def __init__(self, shell: Shell) -> None:
        self._configuration, self._dispatcher, self._slurm = shell.configuration, shell.dispatcher, shell.slurm
        # Sessions that have left still count: a job may run several programs in turn.
        self._waited: dict[JobId, dict[SessionId, int]] = {}

    async def extend(self) -> None:
        for job, facts in self._count_waits():
            order = self._configuration.for_partition(facts.partition).order
            earned = min(sum(self._waited[job].values()), order.extend_time_max_ns) // MINUTE_NS
            if earned <= facts.extended_minutes:
                continue
            minutes = earned - facts.extended_minutes
            try:
                await self._slurm.commands().extend_limit(job, minutes)
            except OperatingError as error:
                log.warning("time limit not extended", job=job, why=str(error))
                continue
            self._dispatcher.change_job(job, extended_minutes=earned)
            log.info("time limit extended", job=job, minutes=minutes)

    def _count_waits(self) -> list[tuple[JobId, JobFacts]]:
        """Update the waits of every job whose limit may be extended, and return these jobs."""
        jobs = {
            job: facts
            for job, facts in self._dispatcher.state.jobs.items()
            if not facts.is_local
            and not facts.is_ended
            and self._configuration.for_partition(facts.partition).order.extend_time
        }
        self._waited = {job: self._waited.get(job, {}) for job in jobs}
        if jobs:
            for device in self._dispatcher.engine.snapshot().devices:
                for session in device.sessions:
                    if session.job in jobs:
                        self._waited[session.job][session.session] = self._waited_ns(session)
        return list(jobs.items())

    def _waited_ns(self, session: SessionSnapshot) -> int:
        is_waiting = session.state is SessionState.WAITING
        return session.waited_ns + (max(0, self._dispatcher.clock() - session.wanted_ns) if is_waiting else 0)
