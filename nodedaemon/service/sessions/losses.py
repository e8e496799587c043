"""Sessions that end or lose contact: the process died, the connection broke, or the session sent BYE.

A dead process can no longer write to anything, so its session leaves at once. A session that lost its connection may
reconnect, and keeps its grant meanwhile. If it maps no lane, it leaves. If it keeps its lane longer than `UnmapTimeout`
without a connection, its process is ended.
"""

from __future__ import annotations

import asyncio

from nodedaemon.core.types import SessionId
from nodedaemon.drivers.process import ProcessState
from nodedaemon.service.devices.lanes import LaneAllocator
from nodedaemon.service.journal.state import EndNote, SessionFacts
from nodedaemon.service.sessions.executor import Executor
from nodedaemon.service.sessions.roster import LiveSession
from nodedaemon.service.shell import Shell
from nodedaemon.service.tasks import BackgroundTasks
from nodedaemon.wire.messages import Bye

CONTACT_POLL_S = 0.25


class SessionLosses:
    def __init__(self, shell: Shell, lanes: LaneAllocator, executor: Executor) -> None:
        self._dispatcher, self._roster = shell.dispatcher, shell.roster
        self._configuration, self._recorder = shell.configuration, shell.recorder
        self._lanes = lanes
        self._executor = executor
        self.tasks = BackgroundTasks()

    def on_disconnect(self, session: SessionId | None, connection: object) -> None:
        live = self._roster.get(session)
        if live is not None and live.connection is connection:
            live.connection = None
            self.watch_contact(live)

    def on_bye(self, live: LiveSession, facts: SessionFacts, _bye: Bye) -> None:
        live.has_said_bye = True
        if not facts.end_reason:
            self._dispatcher.note(EndNote(facts.session, "finished"))
        self.watch_contact(live)

    def on_death(self, session: SessionId) -> None:
        """The pidfd signals that the process is gone."""
        facts, live = self._dispatcher.state.sessions.get(session), self._roster.get(session)
        if facts is None or live is None:
            return
        self._recorder.record_profile(live, facts)
        live.stop_watching()
        if facts.view.is_leaving:
            self._executor.release(live, facts)
        else:
            self._executor.leave(session, "finished" if live.has_said_bye else "died")

    def watch_contact(self, live: LiveSession) -> None:
        """From now on, end the session when it is clear that it will not reconnect."""
        live.lost_contact_ns = self._dispatcher.clock()
        self.tasks.start(self._follow(live.session))

    async def _follow(self, session: SessionId) -> None:
        while True:
            live = self._lost(session)
            if live is None:
                return
            is_held = await self._lanes.is_held_by(self._dispatcher.state.sessions[session], live)
            live = self._lost(session)
            if live is None or live.process is None:
                return
            state = live.process.state()
            if state is ProcessState.GONE or not is_held:
                self._executor.leave(session, "disconnected")
                return
            timeout_ns = self._configuration.settings.lanes.unmap_timeout_ns
            is_late = self._dispatcher.clock() - live.lost_contact_ns > timeout_ns
            if is_late and state is not ProcessState.STOPPED:
                facts = self._dispatcher.state.sessions[session]
                self._executor.end(facts, "it closed its connection and kept its lane")
            await asyncio.sleep(CONTACT_POLL_S)

    def _lost(self, session: SessionId) -> LiveSession | None:
        """The session, if it has no connection or has sent BYE, and has not left; otherwise None."""
        facts, live = self._dispatcher.state.sessions.get(session), self._roster.get(session)
        if facts is None or live is None or facts.view.is_leaving or live.process is None:
            return None
        return live if live.connection is None or live.has_said_bye else None
