"""Watches the sessions that hold a grant while others wait, for changes that no event reports.

A holder may go idle, its process may be stopped, or its gate page may show that its grant is over. While a holder keeps
another session waiting, this module checks every `WATCH_INTERVAL_S`. Otherwise one check per reading is enough.
"""

from __future__ import annotations

import asyncio

from nodedaemon.core import commands, events
from nodedaemon.core.commands import Command
from nodedaemon.core.events import Event
from nodedaemon.core.types import SessionId
from nodedaemon.drivers.process import ProcessState
from nodedaemon.service.sessions.handover import Handover
from nodedaemon.service.shell import Shell
from nodedaemon.wire.logs import log

WATCH_INTERVAL_S = 0.02


class HolderWatch:
    def __init__(self, shell: Shell, handover: Handover, loop: asyncio.AbstractEventLoop) -> None:
        self._dispatcher, self._roster = shell.dispatcher, shell.roster
        self._handover = handover
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, event: Event, made: list[Command], now_ns: int) -> None:  # noqa: ARG002 - EventObserver
        """After each event: check soon if a session wants a grant or was revoked."""
        if isinstance(event, events.GrantWanted) or any(isinstance(command, commands.Revoke) for command in made):
            self.check_soon()

    def check_soon(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(WATCH_INTERVAL_S, self._check)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        self._timer = None
        sessions = list(self._dispatcher.state.sessions.values())
        # A policy may prefer the holder to every waiter, but an idle holder must not keep its grant.
        contended = {facts.device for facts in sessions if facts.view.is_waiting}
        for facts in sessions:
            live = self._roster.get(facts.session)
            is_kept = not facts.view.is_revoked and (facts.device not in contended or not facts.view.is_gated)
            if live is None or facts.view.epoch is None or is_kept:
                continue
            # Check again even if this grant was just returned: the next holder may go idle, and no event reports that.
            self.check_soon()
            if self._handover.take_idle(live, facts) or self._handover.settle_over(live, facts):
                continue
            if facts.view.is_revoked:
                self._look_at_process(facts.session)

    def look_at_processes(self) -> None:
        """Find the sessions whose process was stopped or continued since the last check."""
        for facts in list(self._dispatcher.state.sessions.values()):
            # It makes no difference for a session that neither has nor wants a lane.
            has_lane = facts.view.epoch is not None or facts.mapped_lane is not None
            if has_lane or facts.view.is_waiting or facts.view.is_stopped:
                self._look_at_process(facts.session)

    def _look_at_process(self, session: SessionId) -> None:
        facts, live = self._dispatcher.state.sessions.get(session), self._roster.get(session)
        if facts is None or live is None or live.process is None or facts.view.is_leaving or not facts.view.is_admitted:
            return
        state = live.process.state()
        if state is ProcessState.STOPPED and not facts.view.is_stopped:
            log.info("session stopped", job=facts.job, session=session, device=facts.device)
            job = self._dispatcher.state.jobs.get(facts.job)
            # Assume that Slurm has suspended its job until Slurm has been asked (`jobs.suspensions`).
            self._dispatcher.submit(events.SessionStopped(session, is_suspended=job is not None and not job.is_local))
        elif state is ProcessState.RUNNING and facts.view.is_stopped:
            log.info("session continued", job=facts.job, session=session, device=facts.device)
            self._dispatcher.submit(events.SessionContinued(session))
