"""Old sessions that come back after a restart of salusd or after a lost connection.

A session proves itself with its process (pid, start time and uid from the kernel) and with the descriptors that it
kept: gate page, turn page, and its lane if it maps one.
"""

from __future__ import annotations

import os
from typing import Any

from nodedaemon.core.errors import PeerError
from nodedaemon.core.types import LaneId, SessionId
from nodedaemon.drivers.process import Process
from nodedaemon.service.devices.lanes import LaneAllocator
from nodedaemon.service.journal.dispatcher import Dispatcher
from nodedaemon.service.journal.state import ProcessFacts, SessionFacts
from nodedaemon.service.sessions.attach import SessionAttach
from nodedaemon.service.sessions.connections import Connection
from nodedaemon.service.sessions.gate_memory import GatePage, TurnPage, adopt_page
from nodedaemon.service.sessions.recovery import Recovery
from nodedaemon.service.sessions.roster import LiveSession, Roster
from nodedaemon.wire.messages import Hello, Reject, Unmap


class SessionResume:
    def __init__(
        self,
        dispatcher: Dispatcher,
        roster: Roster,
        lanes: LaneAllocator,
        attach: SessionAttach,
        recovery: Recovery,
        log: Any,
    ) -> None:
        self._dispatcher = dispatcher
        self._roster = roster
        self._lanes = lanes
        self._attach = attach
        self._recovery = recovery
        self._log = log

    def resume(self, connection: Connection, hello: Hello, descriptors: list[int]) -> bool:
        """Take the session back. False if there is no record of it: it continues by itself."""
        session = SessionId(hello.session)
        facts, live = self._dispatcher.state.sessions.get(session), self._roster.get(session)
        if facts is None or live is None or live.process is None or facts.view.is_leaving or len(descriptors) < 2:
            connection.send(Reject("session unknown: the daemon has no record of it; run on without Salus"))
            return facts is not None and facts.process.pid != 0
        if not _is_same(connection, facts):
            raise PeerError(f"resume refused: session {session}: another process has it")
        if live.page is None:
            live.page = adopt_page(GatePage, descriptors.pop(0), facts.page)
            turn = adopt_page(TurnPage, descriptors.pop(0), facts.turn)
            self._roster.adopt_slot(live, facts, turn)
        else:
            os.close(descriptors.pop(0))
            os.close(descriptors.pop(0))
        connection.session = session
        live.connection, live.is_welcomed, live.lost_contact_ns = connection, False, 0
        self._attach.welcome(live, facts)
        self._adopt_lane(live, facts, hello, descriptors)
        self._recovery.on_return(live, facts)
        return True

    def _adopt_lane(self, live: LiveSession, facts: SessionFacts, hello: Hello, descriptors: list[int]) -> None:
        if not descriptors:
            return
        try:
            self._lanes.adopt(facts, live, LaneId(hello.lane), hello.lane_epoch, descriptors.pop(0))
        except PeerError as error:
            self._log.warning("lane not adopted", job=facts.job, session=facts.session, why=str(error))
            if live.connection is not None:
                live.connection.send(Unmap(hello.lane, hello.lane_epoch))


def _is_same(connection: Connection, facts: SessionFacts) -> bool:
    process = Process.of_peer(connection.socket)
    try:
        is_process = ProcessFacts(process.pid, process.start_ticks) == facts.process
        return is_process and connection.credentials.uid == facts.uid
    finally:
        process.close()
