"""Turns the frames of sessions into events. A frame that arrives here is well-formed, but its content is untrusted.

A session can harm only itself with a false report: the daemon never relies on a report about another session. An
illegal frame raises `PeerError`, and the caller closes the connection.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from nodedaemon.core import events
from nodedaemon.core.errors import PeerError
from nodedaemon.core.types import Epoch, SessionId
from nodedaemon.drivers.process import Process
from nodedaemon.service.journal.dispatcher import Dispatcher
from nodedaemon.service.journal.state import SessionFacts
from nodedaemon.service.sessions.bounds import bounded_count
from nodedaemon.service.sessions.connections import Connection
from nodedaemon.service.sessions.greeting import SessionGreeting
from nodedaemon.service.sessions.handover import Handover
from nodedaemon.service.sessions.recovery import Recovery
from nodedaemon.service.sessions.resume import SessionResume
from nodedaemon.service.sessions.roster import LiveSession
from nodedaemon.service.sessions.strays import StraySessions
from nodedaemon.service.shell import Shell
from nodedaemon.wire.logs import log
from nodedaemon.wire.messages import Fault, Hello, HelloFlag, Message, Overrun, Return, Started, Want

#: Handles one type of message of a welcomed session.
FrameHandler = Callable[[LiveSession, SessionFacts, Any], None]


class SessionFrames:
    """Routes the frames of all connections: HELLO by its flag, frames of welcomed sessions by their type."""

    def __init__(
        self,
        shell: Shell,
        greeting: SessionGreeting,
        resume: SessionResume,
        strays: StraySessions,
        handlers: Mapping[type[Message], FrameHandler],
    ) -> None:
        self._shell = shell
        self._greeting = greeting
        self._resume = resume
        self._strays = strays
        self._handlers = handlers

    def is_expected(self, uid: int) -> bool:
        return any(job.uid == uid and not job.is_local for job in self._shell.dispatcher.state.jobs.values())

    def on_message(self, connection: Connection, message: Message, descriptors: list[int]) -> None:
        if isinstance(message, Hello):
            self._on_hello(connection, message, descriptors)
            return
        if isinstance(message, Fault) and connection.session is None:
            self._greeting.on_fault(connection, message)
            return
        facts = self._shell.dispatcher.state.sessions.get(connection.session or SessionId(0))
        live = self._shell.roster.get(connection.session)
        if facts is None or live is None or not live.is_welcomed:
            raise PeerError("frame refused: the session has not been welcomed")
        handler = self._handlers.get(type(message))
        if handler is None:
            raise PeerError(f"frame refused: {message.kind.name}: only salusd sends it")
        handler(live, facts, message)

    def _on_hello(self, connection: Connection, hello: Hello, descriptors: list[int]) -> None:
        if not hello.flags & HelloFlag.RESUME:
            self._greeting.on_hello(connection, hello)
            return
        if connection.session is not None:
            raise PeerError("hello refused: this connection has already sent one")
        connection.stop_timer()
        # Count allocated blocks: a process can set the size of its file to anything.
        lane_bytes = os.fstat(descriptors[2]).st_blocks * 512 if len(descriptors) > 2 else 0
        if not self._resume.resume(connection, hello, descriptors):
            self._strays.add(Process.of_peer(connection.socket), connection.credentials.uid, lane_bytes)


class GrantFrames:
    """Frames about grants. While sessions are gathered, they are ignored, because the pages show the same later."""

    def __init__(self, dispatcher: Dispatcher, handover: Handover, recovery: Recovery) -> None:
        self._dispatcher = dispatcher
        self._handover = handover
        self._recovery = recovery

    def on_want(self, live: LiveSession, facts: SessionFacts, message: Want) -> None:
        if self._recovery.is_gathering:
            return
        view = facts.view
        if view.epoch is not None and message.last_epoch == view.epoch:
            # Its RETURN was lost with a daemon that was killed.
            self._handover.settle_over(live, facts)
        else:
            # The engine ignores a request of a session that waits or runs already, or that needs no grant.
            self._dispatcher.submit(events.GrantWanted(facts.session))

    def on_return(self, live: LiveSession, facts: SessionFacts, message: Return) -> None:
        if self._recovery.is_gathering:
            return
        if facts.view.epoch != message.epoch:
            # Frames of two sockets are not ordered: the RETURN of the session that started this one may come later.
            self._handover.settle_offers_to(facts.session)
        if facts.view.epoch != message.epoch:
            return
        iteration_count = bounded_count(message.iteration_count, facts, self._dispatcher.clock())
        handed_over = Epoch(message.successor_epoch) if message.handed_over else None
        if handed_over is not None and handed_over not in facts.view.offers:
            raise PeerError(f"hand-over refused: session {facts.session}: epoch {handed_over} was not offered")
        if handed_over is None and facts.view.offers:
            handed_over = self._handover.settle(live, facts)
        self._dispatcher.submit(
            events.GrantReturned(
                facts.session,
                Epoch(message.epoch),
                iteration_count,
                min(message.contended_count, iteration_count),
                bool(message.wants_next),
                handed_over,
            )
        )

    def on_started(self, _live: LiveSession, facts: SessionFacts, _message: Started) -> None:
        """Check the pages of the sessions that may have started this one."""
        if not self._recovery.is_gathering:
            self._handover.settle_offers_to(facts.session)


class SessionReports:
    """Frames in which a session reports on itself: that it needs more memory, and faults of the adaptor."""

    def __init__(self, shell: Shell, preload_uids: set[int]) -> None:
        self._shell = shell
        #: See `JobEnvironment.preload_uids`.
        self._preload_uids = preload_uids

    def on_overrun(self, live: LiveSession, facts: SessionFacts, message: Overrun) -> None:
        live.overrun_serial = message.serial
        detail = f"wants {message.persistent_bytes} persistent, {message.ephemeral_bytes} in a lane"
        self._shell.recorder.report("overrun", facts, detail)
        self._shell.dispatcher.submit(
            events.SessionOverran(facts.session, message.persistent_bytes, message.ephemeral_bytes)
        )

    def on_fault(self, _live: LiveSession, facts: SessionFacts, message: Fault) -> None:
        if message.text.startswith("hook:"):
            self._preload_uids.add(facts.uid)
        is_off = bool(message.is_off)
        log.warning(
            "job reports a fault of Salus", job=facts.job, session=facts.session, what=message.text, is_off=is_off
        )
