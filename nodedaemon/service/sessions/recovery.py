"""After a restart: wait for the old sessions, find out what has happened since, and continue.

Jobs continue while the daemon is down: holders keep their leases, prepared hand-overs take place, processes die. So the
daemon decides nothing until every live session has reconnected or has had time to. Until then it *gathers*. After that
the pages show which events the engine has missed: a grant was returned, handed over or never started, or a process
died. At the end the daemon repeats the commands that may not have arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nodedaemon.core import events
from nodedaemon.core.commands import OpenLane
from nodedaemon.core.errors import PeerError
from nodedaemon.core.state.lanes import LaneState
from nodedaemon.core.types import SessionId
from nodedaemon.drivers.process import Process
from nodedaemon.service.devices.lanes import LaneAllocator
from nodedaemon.service.journal.state import SessionFacts
from nodedaemon.service.sessions.handover import Handover
from nodedaemon.service.sessions.losses import SessionLosses
from nodedaemon.service.sessions.roster import LiveSession
from nodedaemon.service.shell import Shell
from nodedaemon.wire.logs import log
from nodedaemon.wire.pages import GateState

#: A session retries after 5 s at the latest; this leaves time for a second try on a busy machine.
GATHER_TIMEOUT_S = 12.0


class Recovery:
    def __init__(self, shell: Shell, lanes: LaneAllocator, handover: Handover, losses: SessionLosses) -> None:
        self._dispatcher, self._roster = shell.dispatcher, shell.roster
        self._lanes = lanes
        self._handover = handover
        self._losses = losses
        self._missing: set[SessionId] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._gathered = asyncio.Event()
        #: Called when all sessions are gathered, before `wait_gathered` returns.
        self.on_gathered: Callable[[], None] = lambda: None
        self.is_gathering = False
        self.adopted_count = 0

    async def wait_gathered(self) -> None:
        await self._gathered.wait()

    def start(self, timeout_s: float = GATHER_TIMEOUT_S) -> None:
        """Begin to gather the sessions of the journal. Ends at once if none of them lives."""
        self.is_gathering = True
        for facts in self._dispatcher.state.sessions.values():
            live = self._roster.add(facts.session)
            if facts.view.is_admitted:
                live.admitted.set()
            if facts.process.pid == 0:
                continue
            try:
                live.process = Process.of_pid(facts.process.pid, facts.process.start_ticks)
            except PeerError:
                continue
            live.watch_death(self._on_death)
            # A session without a page is a stray: it is counted, and does not reconnect.
            if not facts.view.is_leaving and facts.page:
                self._missing.add(facts.session)
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._finish)
        self._finish_if_complete()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def on_return(self, live: LiveSession, facts: SessionFacts) -> None:
        """An old session is connected again and has its pages."""
        self.adopted_count += 1
        self._missing.discard(facts.session)
        if self.is_gathering:
            self._finish_if_complete()
        else:
            self._handover.settle_over(live, facts)
            self._catch_up(live, facts)
            self._lanes.resume(facts.session)

    def _on_death(self, session: SessionId) -> None:
        """While sessions are gathered, `_finish` handles a death together with everything else."""
        if not self.is_gathering:
            self._losses.on_death(session)
            return
        live = self._roster.get(session)
        if live is not None:
            live.stop_watching()
            if live.process is not None:
                live.process.close()
                live.process = None
        self._missing.discard(session)
        self._finish_if_complete()

    def _finish_if_complete(self) -> None:
        if self.is_gathering and not self._missing:
            asyncio.get_running_loop().call_soon(self._finish)

    def _finish(self) -> None:
        if not self.is_gathering:
            return
        self.is_gathering = False
        self.stop()
        state = self._dispatcher.state
        for session in self._missing:
            log.warning("session did not reconnect", session=session, job=state.sessions[session].job)
        sessions = [
            (live, facts) for facts in list(state.sessions.values()) if (live := self._roster.get(facts.session))
        ]
        for live, facts in sessions:
            self._handover.settle_over(live, facts)
        for live, facts in sessions:
            if facts.process.pid and live.process is None and facts.session in state.sessions:
                self._losses.on_death(facts.session)
        self._repeat_lanes()
        for live, facts in sessions:
            if facts.session in state.sessions:
                self._catch_up(live, facts)
                if facts.session in self._missing:
                    self._losses.watch_contact(live)
        self._missing.clear()
        self.on_gathered()
        self._gathered.set()

    def _repeat_lanes(self) -> None:
        """Repeat the last command for every lane that holds memory."""
        devices = self._dispatcher.engine.device_views.values()
        lanes = [lane for device in devices for lane in device.open_lanes.values()]
        for lane in lanes:
            if lane.state is LaneState.RELEASING:
                self._lanes.release(lane.id)
            elif lane.state is LaneState.OPENING:
                self._lanes.open(OpenLane(lane.id, lane.device, lane.domain, lane.held_bytes, lane.epoch))
            else:
                self._lanes.reallocate(lane.id)

    def _catch_up(self, live: LiveSession, facts: SessionFacts) -> None:
        """Repeat the commands that may not have reached the session, and read the request that it made meanwhile."""
        view = facts.view
        if live.page is None or view.is_leaving:
            return
        reading = live.page.read()
        if view.epoch is not None:
            self._handover.start(live, facts)
            if view.is_limited_later and view.lease_limit is not None:
                live.page.limit_further(view.epoch, view.lease_limit)
            if view.is_revoked:
                self._handover.revoke(live, facts)
        elif reading.state is GateState.WAITING:
            self._dispatcher.submit(events.GrantWanted(facts.session))
