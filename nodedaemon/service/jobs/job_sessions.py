"""The sessions of a job as a whole: opens them, waits until they are admitted, and closes them with the job."""

from __future__ import annotations

import asyncio

from nodedaemon.core.types import DeviceId, JobId, SessionId
from nodedaemon.service.journal.dispatcher import Dispatcher
from nodedaemon.service.journal.state import JobFacts, SessionFacts
from nodedaemon.service.sessions.attach import SessionAttach
from nodedaemon.service.sessions.executor import Executor
from nodedaemon.service.sessions.roster import Roster


class JobSessions:
    def __init__(self, dispatcher: Dispatcher, roster: Roster, attach: SessionAttach, executor: Executor) -> None:
        self._dispatcher = dispatcher
        self._roster = roster
        self._attach = attach
        self._executor = executor

    def open(self, job: JobFacts, device: DeviceId) -> SessionFacts:
        return self._attach.open(job, device)

    def ids(self, job: JobFacts) -> list[SessionId]:
        return [session.session for session in self._dispatcher.state.live_sessions(job.job)]

    async def wait_admitted(self, sessions: list[SessionId], timeout_s: float) -> bool:
        """Wait until the engine has admitted all of them; False if the time is up first."""
        lives = [live for session in sessions if (live := self._roster.get(session)) is not None]
        waits = [asyncio.ensure_future(live.admitted.wait()) for live in lives if not live.admitted.is_set()]
        if waits:
            _, pending = await asyncio.wait(waits, timeout=timeout_s)
            for wait in pending:
                wait.cancel()
        facts = [self._dispatcher.state.sessions.get(session) for session in sessions]
        return all(one is None or one.view.is_admitted for one in facts)

    async def close(self, job: JobFacts, timeout_s: float) -> None:
        """End the sessions without a process. Slurm ends the processes of the others; wait for them, up to a bound."""
        attached = []
        for session in self.ids(job):
            live = self._roster.get(session)
            if live is None or live.process is None:
                self._executor.leave(session, "finished")
            else:
                attached.append(live)
        if attached:
            await asyncio.wait([asyncio.ensure_future(live.released.wait()) for live in attached], timeout=timeout_s)

    def attached_jobs(self) -> set[JobId]:
        """Jobs with a session that has a process."""
        sessions = self._dispatcher.state.sessions.values()
        return {session.job for session in sessions if session.process.pid and not session.view.is_leaving}

    def leave(self, job: JobFacts) -> None:
        for session in self.ids(job):
            self._executor.leave(session, "finished")
