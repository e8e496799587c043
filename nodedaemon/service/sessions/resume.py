"""Old sessions that reconnect after a restart of salusd or after a lost connection.

A session proves its identity with its process (pid, start time and uid from the kernel) and with the descriptors that
it kept: gate page, turn page, and its lane if it maps one.
"""

from __future__ import annotations

from nodedaemon.core.errors import PeerError
from nodedaemon.core.types import LaneId, SessionId
from nodedaemon.drivers.process import Process
from nodedaemon.service.devices.lanes import LaneAllocator
from nodedaemon.service.journal.state import ProcessFacts, SessionFacts
from nodedaemon.service.sessions.attach import SessionAttach
from nodedaemon.service.sessions.connections import Connection
from nodedaemon.service.sessions.gate_memory import GatePage, TurnPage, adopt_page
from nodedaemon.service.sessions.recovery import Recovery
from nodedaemon.service.sessions.roster import LiveSession
from nodedaemon.service.shell import Shell
from nodedaemon.wire.logs import log
from nodedaemon.wire.messages import Hello, Reject, Unmap


class SessionResume:
    def __init__(self, shell: Shell, lanes: LaneAllocator, attach: SessionAttach, recovery: Recovery) -> None:
        self._dispatcher, self._roster = shell.dispatcher, shell.roster
        self._lanes = lanes
        self._attach = attach
        self._recovery = recovery

    def resume(self, connection: Connection, hello: Hello, descriptors: list[int]) -> bool:
        """Resume the session. False if there is no record of its process: it continues without Salus."""
        session = SessionId(hello.session)
        facts, live = self._dispatcher.state.sessions.get(session), self._roster.get(session)
        if facts is None or live is None or live.process is None or facts.view.is_leaving or len(descriptors) < 2:
            connection.send(Reject("session unknown: the daemon has no record of it; continue without Salus"))
            return facts is not None and facts.process.pid != 0
        if not _is_same(connection, facts):
            raise PeerError(f"resume refused: session {session}: it belongs to another process")
        if live.page is None:
            live.page = adopt_page(GatePage, descriptors[0], facts.page)
            self._roster.adopt_slot(live, facts, adopt_page(TurnPage, descriptors[1], facts.turn))
        connection.session = session
        live.connection, live.is_welcomed, live.lost_contact_ns = connection, False, 0
        self._attach.welcome(live, facts)
        for lane_fd in descriptors[2:3]:
            self._adopt_lane(live, facts, hello, lane_fd)
        self._recovery.on_return(live, facts)
        return True

    def _adopt_lane(self, live: LiveSession, facts: SessionFacts, hello: Hello, lane_fd: int) -> None:
        try:
            self._lanes.adopt(facts, live, LaneId(hello.lane), hello.lane_epoch, lane_fd)
        except PeerError as error:
            log.warning("lane not adopted", job=facts.job, session=facts.session, why=str(error))
            if live.connection is not None:
                live.connection.send(Unmap(hello.lane, hello.lane_epoch))


def _is_same(connection: Connection, facts: SessionFacts) -> bool:
    process = Process.of_peer(connection.socket)
    try:
        is_process = ProcessFacts(process.pid, process.start_ticks) == facts.process
        return is_process and connection.credentials.uid == facts.uid
    finally:
        process.close()
