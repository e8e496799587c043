"""Adds the time that a job spent waiting at the gate to its time limit, where `ExtendTime` says so.

Slurm counts limits in minutes, so a job gets each whole minute once it has waited for it. What was given is kept
with the job and survives a restart; a change that Slurm refuses is tried again at the next look, and no job gets more
than `ExtendTimeMax` in all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from nodedaemon.config import Settings
from nodedaemon.core.errors import OperatingError
from nodedaemon.core.sessions import SessionState
from nodedaemon.core.snapshots import SessionSnapshot
from nodedaemon.core.types import SECOND_NS, JobId, SessionId
from nodedaemon.service.journal.state import JobFacts, JobNote, ShellState

MINUTE_NS = 60 * SECOND_NS


class Extender(Protocol):
    """Slurm's command; tests have a twin."""

    async def extend_limit(self, job: JobId, minutes: int) -> None: ...


class TimeLimits:
    def __init__(
        self,
        slurm: Callable[[], Extender],
        state: ShellState,
        *,
        sessions: Callable[[], Iterable[SessionSnapshot]],
        settings: Callable[[str], Settings],
        note: Callable[[JobNote], None],
        clock: Callable[[], int],
        log: Any,
    ) -> None:
        self._slurm = slurm
        self._state = state
        self._sessions = sessions
        self._settings = settings
        self._note = note
        self._clock = clock
        self._log = log
        # Sessions that have left keep counting: a job may start several programs in turn.
        self._waited: dict[JobId, dict[SessionId, int]] = {}

    async def look(self) -> None:
        for job, facts in self._due():
            settings = self._settings(facts.partition).order
            earned = min(sum(self._waited[job].values()), settings.extend_time_max_ns) // MINUTE_NS
            if earned <= facts.extended_minutes:
                continue
            minutes = earned - facts.extended_minutes
            try:
                await self._slurm().extend_limit(job, minutes)
            except OperatingError as error:
                self._log.warning("time limit not extended", job=job, why=str(error))
                continue
            facts.extended_minutes = earned
            self._note(JobNote(facts))
            self._log.info("time limit extended", job=job, minutes=minutes)

    def _due(self) -> list[tuple[JobId, JobFacts]]:
        """Jobs whose waits count, with their waits taken down."""
        jobs = {
            job: facts
            for job, facts in self._state.jobs.items()
            if not facts.is_local and not facts.is_ended and self._settings(facts.partition).order.extend_time
        }
        self._waited = {job: self._waited.get(job, {}) for job in jobs}
        if jobs:
            for session in self._sessions():
                if session.job in jobs:
                    self._waited[session.job][session.session] = self._waited_ns(session)
        return list(jobs.items())

    def _waited_ns(self, session: SessionSnapshot) -> int:
        is_waiting = session.state is SessionState.WAITING
        return session.waited_ns + (max(0, self._clock() - session.wanted_ns) if is_waiting else 0)
