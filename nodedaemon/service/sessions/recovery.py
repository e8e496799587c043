"""After a restart: take old sessions back, find out what happened while nobody was there, and go on.

Jobs run on without the daemon: holders keep their leases, hand-overs that were prepared take place, processes die. So
nothing is decided before everybody who is alive has come back or had time to: until then the daemon *gathers*. Then the
pages tell, session by session, what the engine must hear: a grant returned, handed over or never started, a death.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from nodedaemon.core import events
from nodedaemon.core.commands import OpenLane
from nodedaemon.core.errors import PeerError
from nodedaemon.core.lanes import LaneState
from nodedaemon.core.types import LaneId, SessionId
from nodedaemon.drivers.process import Process
from nodedaemon.service.devices.lanes import LaneKeeper
from nodedaemon.service.journal.dispatcher import Dispatcher
from nodedaemon.service.journal.state import SessionFacts
from nodedaemon.service.sessions.attach import SessionDesk
from nodedaemon.service.sessions.connections import Connection
from nodedaemon.service.sessions.executor import Executor
from nodedaemon.service.sessions.gate_memory import GatePage, TurnPage, adopt_page
from nodedaemon.service.sessions.roster import LiveSession, Roster
from nodedaemon.wire.messages import Hello, Reject, Unmap
from nodedaemon.wire.pages import GateState

#: A session tries again after at most 5 s; one more try is allowed for a busy machine.
GATHER_TIMEOUT_S = 12.0


class Recovery:
    def __init__(
        self,
        dispatcher: Dispatcher,
        roster: Roster,
        lanes: LaneKeeper,
        executor: Executor,
        desk: SessionDesk,
        *,
        loop: asyncio.AbstractEventLoop,
        on_gathered: Callable[[], None],
        watch_contact: Callable[[SessionId], None],
        log: Any,
    ) -> None:
        self._dispatcher = dispatcher
        self._roster = roster
        self._lanes = lanes
        self._executor = executor
        self._desk = desk
        self._loop = loop
        self._on_gathered = on_gathered
        self._watch_contact = watch_contact
        self._log = log
        self._missing: set[SessionId] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.is_gathering = False
        self.adopted_count = 0
        self._gathered = asyncio.Event()

    async def wait_gathered(self) -> None:
        await self._gathered.wait()

    def start(self, timeout_s: float = GATHER_TIMEOUT_S) -> None:
        """Begin to gather the sessions that the journal knows; ends at once where none of them lives."""
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
            self._desk.watch(live)
            # One without a page runs on by itself and is only counted: it will not come.
            if not facts.view.is_leaving and facts.page:
                self._missing.add(facts.session)
        self._timer = self._loop.call_later(timeout_s, self._finish)
        self._finish_if_complete()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def on_death(self, session: SessionId) -> bool:
        """True while gathering: the death is settled with all the rest."""
        if not self.is_gathering:
            return False
        live = self._roster.get(session)
        if live is not None:
            for closer in live.closers:
                closer()
            live.closers.clear()
            if live.process is not None:
                live.process.close()
                live.process = None
        self._missing.discard(session)
        self._finish_if_complete()
        return True

    def resume(self, connection: Connection, hello: Hello, descriptors: list[int]) -> bool:
        """A session of before comes back with its descriptors: gate page, turn page, and its lane if it maps one.

        False where nothing is known of it: it was told to run on by itself.
        """
        session = SessionId(hello.session)
        facts, live = self._dispatcher.state.sessions.get(session), self._roster.get(session)
        if facts is None or live is None or live.process is None or facts.view.is_leaving or len(descriptors) < 2:
            connection.send(Reject("session unknown: the daemon has no record of it; run on without Salus"))
            return facts is not None and facts.process.pid != 0
        if not self._is_same(connection, facts):
            raise PeerError(f"resume refused: session {session}: another process has it")
        if live.page is None:
            live.page = adopt_page(GatePage, descriptors.pop(0), facts.page)
            turn = adopt_page(TurnPage, descriptors.pop(0), facts.turn)
            self._roster.adopt_slot(live, facts.uid, facts.view.domain, facts.device, turn, facts.slot)
        else:
            os.close(descriptors.pop(0))
            os.close(descriptors.pop(0))
        connection.session = session
        live.connection, live.is_welcomed, live.lost_contact_ns = connection, False, 0
        self._desk.welcome(live, facts)
        self._adopt_lane(facts, live, connection, hello, descriptors)
        self.adopted_count += 1
        self._missing.discard(session)
        if self.is_gathering:
            self._finish_if_complete()
        else:
            self._executor.settle_over(live, facts)
            self._catch_up(facts, live)
            self._lanes.resume(session)
        return True

    def _is_same(self, connection: Connection, facts: SessionFacts) -> bool:
        process = Process.of_peer(connection.socket)
        try:
            is_process = (process.pid, process.start_ticks) == (facts.process.pid, facts.process.start_ticks)
            return is_process and connection.credentials.uid == facts.uid
        finally:
            process.close()

    def _adopt_lane(
        self, facts: SessionFacts, live: LiveSession, connection: Connection, hello: Hello, descriptors: list[int]
    ) -> None:
        if not descriptors:
            return
        try:
            self._lanes.adopt(facts, live, LaneId(hello.lane), hello.lane_epoch, descriptors.pop(0))
        except PeerError as error:
            self._log.warning("lane not adopted", job=facts.job, session=facts.session, why=str(error))
            connection.send(Unmap(hello.lane, hello.lane_epoch))

    def _finish_if_complete(self) -> None:
        if self.is_gathering and not self._missing:
            self._loop.call_soon(self._finish)

    def _finish(self) -> None:
        if not self.is_gathering:
            return
        self.is_gathering = False
        self.stop()
        state = self._dispatcher.state
        for session in self._missing:
            self._log.warning("session did not come back", session=session, job=state.sessions[session].job)
        everybody = [
            (facts, live) for facts in list(state.sessions.values()) if (live := self._roster.get(facts.session))
        ]
        for facts, live in everybody:
            self._executor.settle_over(live, facts)
        for facts, live in everybody:
            if facts.process.pid and live.process is None and facts.session in state.sessions:
                self._bury(facts, live)
        lanes = [lane for device in state.engine.devices() for lane in device.open_lanes.values()]
        for lane in lanes:
            if lane.state is LaneState.RELEASING:
                self._lanes.release(lane.id)
            elif lane.state is LaneState.OPENING:
                self._lanes.open(OpenLane(lane.id, lane.device, lane.domain, lane.held_bytes, lane.epoch))
            else:
                self._lanes.remake(lane.id)
        for facts, live in everybody:
            if facts.session in state.sessions:
                self._catch_up(facts, live)
                if facts.session in self._missing:
                    self._watch_contact(facts.session)
        self._missing.clear()
        self._gathered.set()
        self._on_gathered()

    def _bury(self, facts: SessionFacts, live: LiveSession) -> None:
        if facts.view.is_leaving:
            self._executor.release(live, facts)
        else:
            self._executor.leave(facts.session, "died")

    def _catch_up(self, facts: SessionFacts, live: LiveSession) -> None:
        """Repeat the orders that may not have reached the session, and hear what it may have said to nobody."""
        if live.page is None or facts.view.is_leaving:
            return
        reading = live.page.read()
        if facts.view.epoch is not None:
            self._executor.start(live, facts)
            if facts.view.is_limited_later and facts.view.lease_limit is not None:
                live.page.limit_further(facts.view.epoch, facts.view.lease_limit)
            if facts.view.is_revoked:
                self._executor.revoke(live, facts)
        elif (
            reading.state is GateState.WAITING
            and not facts.view.is_waiting
            and facts.view.ephemeral_bytes
            and facts.view.is_admitted
        ):
            self._dispatcher.submit(events.GrantWanted(facts.session))
