"""Watches the sessions that hold a grant while others wait, for changes that no event reports.

A holder may go idle, its process may be stopped, or its gate page may show that its grant is over. While such a holder
keeps another session waiting, this module looks every `WATCH_INTERVAL_S`. Otherwise a look at every reading is enough.
"""

from __future__ import annotations

import asyncio
from typing import Any

from nodedaemon.core import commands, events
from nodedaemon.core.commands import Command
from nodedaemon.core.events import Event
from nodedaemon.core.types import SessionId
from nodedaemon.drivers.process import ProcessState
from nodedaemon.service.journal.dispatcher import Dispatcher
from nodedaemon.service.sessions.handover import Handover
from nodedaemon.service.sessions.roster import Roster

WATCH_INTERVAL_S = 0.02


class HolderWatch:
    def __init__(
        self,
        dispatcher: Dispatcher,
        roster: Roster,
        handover: Handover,
        loop: asyncio.AbstractEventLoop,
        log: Any,
    ) -> None:
        self._dispatcher = dispatcher
        self._roster = roster
        self._handover = handover
        self._loop = loop
        self._log = log
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, event: Event, made: list[Command], now_ns: int) -> None:  # noqa: ARG002 - a watcher's signature
        """After each event: a session that wants a grant or was revoked is a reason to look."""
        if isinstance(event, events.GrantWanted) or any(isinstance(command, commands.Revoke) for command in made):
            self.look_soon()

    def look_soon(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(WATCH_INTERVAL_S, self._look)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        sessions = list(self._dispatcher.state.sessions.values())
        # A policy may prefer the holder to every waiter, but an idle holder has no claim to its grant.
        contended = {facts.device for facts in sessions if facts.view.is_waiting}
        for facts in sessions:
            live = self._roster.get(facts.session)
            is_kept = not facts.view.is_revoked and (facts.device not in contended or not facts.view.is_gated)
            if live is None or facts.view.epoch is None or is_kept:
                continue
            # Look again even if this grant has just come back: its next holder may go idle, and no event reports that.
            self.look_soon()
            if self._handover.take_idle(live, facts) or self._handover.settle_over(live, facts):
                continue
            if facts.view.is_revoked:
                self._look_at_process(facts.session)

    def look_at_processes(self) -> None:
        """Find the sessions whose process was stopped or continued since the last look."""
        for facts in list(self._dispatcher.state.sessions.values()):
            # For a session that neither holds nor wants a grant it makes no difference.
            if facts.view.epoch is not None or facts.view.is_waiting or facts.view.is_stopped:
                self._look_at_process(facts.session)

    def _look_at_process(self, session: SessionId) -> None:
        facts, live = self._dispatcher.state.sessions.get(session), self._roster.get(session)
        if facts is None or live is None or live.process is None or facts.view.is_leaving or not facts.view.is_admitted:
            return
        state = live.process.state()
        if state is ProcessState.STOPPED and not facts.view.is_stopped:
            self._log.info("session stopped", job=facts.job, session=session, device=facts.device)
            self._dispatcher.submit(events.SessionStopped(session))
        elif state is ProcessState.RUNNING and facts.view.is_stopped:
            self._log.info("session continued", job=facts.job, session=session, device=facts.device)
            self._dispatcher.submit(events.SessionContinued(session))
