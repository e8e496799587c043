"""What sessions say, turned into events. A frame is well-formed when it comes here, and still untrusted.

A lie about oneself costs oneself; nothing that a session says is believed about another. An illegal frame raises
`PeerError`, and the connection is closed by who called.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from nodedaemon.core import events
from nodedaemon.core.errors import PeerError, SalusError
from nodedaemon.core.types import DeviceId, Epoch, LaneId, SessionId
from nodedaemon.drivers.process import Process, ProcessState
from nodedaemon.service.devices.lanes import LaneKeeper
from nodedaemon.service.journal.dispatcher import Dispatcher
from nodedaemon.service.journal.state import EndNote, JobFacts, SessionFacts
from nodedaemon.service.sessions.attach import SessionDesk
from nodedaemon.service.sessions.connections import Connection
from nodedaemon.service.sessions.executor import ITERATION_COUNT_MAX, Executor
from nodedaemon.service.sessions.roster import LiveSession, Roster
from nodedaemon.wire import messages
from nodedaemon.wire.messages import HelloFlag, Message

#: A session that lost its connection and maps no lane is over at once; one that maps a lane may come back till then.
CONTACT_POLL_S = 0.25
#: libsalus waits three times as long after each of these; its first answer it expects within 2 s.
PATIENCE_INTERVAL_S = 20.0
PATIENCE_TEXT = "salusd is not ready for this session yet: it gathers old sessions or waits for memory"

FindJob = Callable[[Process, int], Awaitable[JobFacts]]


class Server:
    def __init__(
        self,
        dispatcher: Dispatcher,
        roster: Roster,
        lanes: LaneKeeper,
        executor: Executor,
        desk: SessionDesk,
        *,
        loop: asyncio.AbstractEventLoop,
        find_job: FindJob,
        find_device: Callable[[JobFacts, str], DeviceId],
        resume: Callable[[Connection, messages.Hello, list[int]], bool],
        measure: Callable[[DeviceId, int], Awaitable[int]],
        is_gathering: Callable[[], bool],
        wait_gathered: Callable[[], Awaitable[None]],
        user_sessions_max: Callable[[], int],
        contact_timeout_ns: Callable[[], int],
        on_profile: Callable[[LiveSession, SessionFacts, messages.ProfileReport], None],
        report: Callable[[str, SessionFacts, str], None],
        log: Any,
    ) -> None:
        self._dispatcher = dispatcher
        self._roster = roster
        self._lanes = lanes
        self._executor = executor
        self._desk = desk
        self._loop = loop
        self._find_job = find_job
        self._find_device = find_device
        self._resume = resume
        self._measure = measure
        self._is_gathering = is_gathering
        self._wait_gathered = wait_gathered
        self._user_sessions_max = user_sessions_max
        self._contact_timeout_ns = contact_timeout_ns
        self._on_profile = on_profile
        # Users with a framework whose calls cannot be patched: their next jobs get the preload.
        self.unhooked_uids: set[int] = set()
        self._report = report
        self._log = log
        self._greetings: set[asyncio.Task[None]] = set()
        self._greeting: set[Connection] = set()
        self._early: list[tuple[Connection, messages.Hello]] = []

    def on_message(self, connection: Connection, message: Message, descriptors: list[int]) -> None:
        if isinstance(message, messages.Hello):
            self._on_hello(connection, message, descriptors)
            return
        if isinstance(message, messages.Fault) and connection.session is None:
            self._on_early_fault(connection, message)
            return
        facts, live = self._session_of(connection)
        # Till everybody is back the pages are not all there to tell who runs; they will say the same as these frames.
        if self._is_gathering() and isinstance(message, messages.Want | messages.Return | messages.Started):
            return
        match message:
            case messages.Want():
                self._on_want(facts, message)
            case messages.Return():
                self._on_return(facts, message)
            case messages.Started():
                # Nothing is believed but that it is worth a look at the pages of those who may have started it.
                self._executor.settle_offers_to(facts.session)
            case messages.Unmapped():
                self._lanes.unmapped(LaneId(message.lane))
            case messages.ProfileReport():
                self._on_profile(live, facts, message)
            case messages.Overrun():
                self._on_overrun(facts, live, message)
            case messages.Fault():
                if message.text.startswith("hook:"):
                    self.unhooked_uids.add(facts.uid)
                self._log.warning(
                    "job reports a fault of ours",
                    job=facts.job,
                    session=facts.session,
                    what=message.text,
                    is_off=bool(message.is_off),
                )
            case messages.Bye():
                live.has_said_bye = True
                if not facts.end_reason:
                    self._dispatcher.note(EndNote(facts.session, "finished"))
                self.watch_contact(facts.session)
            case _:
                raise PeerError(f"frame refused: {message.kind.name}: only salusd sends it")

    def _on_early_fault(self, connection: Connection, message: messages.Fault) -> None:
        """The adaptor could not even say hello: which job that was is the log's business, not a session's."""
        connection.stop_timer()
        credentials = connection.credentials
        self._log.warning(
            "job reports a fault of ours",
            job="",
            pid=credentials.pid,
            uid=credentials.uid,
            what=message.text,
            is_off=True,
        )

    def _session_of(self, connection: Connection) -> tuple[SessionFacts, LiveSession]:
        facts = self._dispatcher.state.sessions.get(connection.session or SessionId(0))
        live = self._roster.get(connection.session)
        if facts is None or live is None or not live.is_welcomed:
            raise PeerError("frame refused: the session has not been welcomed")
        return facts, live

    # Hello

    def _on_hello(self, connection: Connection, hello: messages.Hello, descriptors: list[int]) -> None:
        if connection.session is not None or connection in self._greeting:
            raise PeerError("hello refused: this connection has said it already")
        connection.stop_timer()
        if hello.flags & HelloFlag.RESUME:
            # What the lane really holds, not its size: a stranger's descriptor may claim any size.
            lane_bytes = os.fstat(descriptors[2]).st_blocks * 512 if len(descriptors) > 2 else 0
            if not self._resume(connection, hello, descriptors):
                self._start(
                    self._hold_stray(Process.of_peer(connection.socket), connection.credentials.uid, lane_bytes)
                )
            return
        self._greeting.add(connection)
        if self._is_gathering():
            self._early.append((connection, hello))
            self._ask_patience(connection)
            return
        self._start_greeting(connection, hello)

    def _ask_patience(self, connection: Connection) -> None:
        """Have a session wait for its WELCOME: it gives up early only on a daemon that says nothing at all."""
        live = self._roster.get(connection.session)
        is_pending = not live.is_welcomed if live is not None else connection in self._greeting
        if connection.is_closed or not is_pending:
            return
        connection.send(messages.Notice(PATIENCE_TEXT))
        self._loop.call_later(PATIENCE_INTERVAL_S, self._ask_patience, connection)

    def greet_early(self) -> None:
        """Serve those who said hello while the daemon was still gathering its old sessions."""
        early, self._early = self._early, []
        for connection, hello in early:
            if not connection.is_closed:
                self._start_greeting(connection, hello)

    def _start_greeting(self, connection: Connection, hello: messages.Hello) -> None:
        self._start(self._greet(connection, hello))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._greetings.add(task)
        task.add_done_callback(self._greetings.discard)

    async def _greet(self, connection: Connection, hello: messages.Hello) -> None:
        process: Process | None = None
        try:
            process = Process.of_peer(connection.socket)
            uid = connection.credentials.uid
            job = await self._find_job(process, uid)
            if connection.is_closed:
                raise PeerError("session refused: the process went away")
            # After the last await: of many hellos at once each must see those before it.
            attached = [one for one in self._dispatcher.state.sessions.values() if one.uid == uid and one.process.pid]
            if len(attached) >= self._user_sessions_max():
                raise PeerError(f"session refused: uid {uid}: it has as many sessions as UserSessions allows")
            device = self._find_device(job, hello.device)
            facts = self._desk.take(job, device, process)
            if hello.flags & HelloFlag.UNGATED and facts.view.is_gated:
                self._dispatcher.submit(events.SessionUngated(facts.session))
            self._declare(facts, hello)
            connection.session = facts.session
            self._desk.attach(facts, process, connection)
            self._ask_patience(connection)
        except SalusError as error:
            if process is not None:
                process.close()
            self._log.info(
                "hello refused", pid=connection.credentials.pid, uid=connection.credentials.uid, why=str(error)
            )
            connection.send(messages.Reject(str(error)))
        finally:
            self._greeting.discard(connection)

    async def _hold_stray(self, process: Process, uid: int, lane_bytes: int) -> None:
        """Count a session whose record is lost by what its process holds, until that ends; it runs on by itself.

        It takes what it had in its lane into its own memory, so both are counted.
        """
        try:
            await self._wait_gathered()
            job = await self._find_job(process, uid)
            own_bytes = await self._measure(job.device, process.pid)
            facts = self._desk.hold(job, job.device, process, own_bytes + lane_bytes)
        except SalusError as error:
            self._log.warning("session of a lost journal not counted", pid=process.pid, uid=uid, why=str(error))
            process.close()
            return
        self._log.warning(
            "session of a lost journal runs on by itself",
            job=facts.job,
            session=facts.session,
            bytes=facts.view.persistent_bytes,
        )

    def _declare(self, facts: SessionFacts, hello: messages.Hello) -> None:
        """What the job says of itself (`salus_job.declare`) may only raise what it was admitted with."""
        wanted = (
            max(hello.declared_persistent_bytes, facts.view.persistent_bytes),
            max(hello.declared_ephemeral_bytes, facts.view.ephemeral_bytes),
        )
        if (
            facts.view.is_admitted
            and facts.view.is_gated
            and wanted != (facts.view.persistent_bytes, facts.view.ephemeral_bytes)
        ):
            self._dispatcher.submit(events.SessionOverran(facts.session, *wanted))

    async def close(self) -> None:
        for task in list(self._greetings):
            task.cancel()
        await asyncio.gather(*self._greetings, return_exceptions=True)

    # Frames of a session

    def _on_want(self, facts: SessionFacts, message: messages.Want) -> None:
        if facts.view.epoch is not None and message.last_epoch == facts.view.epoch:
            # Its RETURN went to a daemon that is no more.
            live = self._roster.get(facts.session)
            started = self._executor.settle(live, facts) if live is not None else None
            self._dispatcher.submit(
                events.GrantReturned(facts.session, Epoch(facts.view.epoch), 0, handed_over=started)
            )
        elif facts.view.epoch is None and not facts.view.is_waiting and facts.view.ephemeral_bytes:
            # One that was ungated between two iterations asks once more, and keeps its lane from then on.
            self._dispatcher.submit(events.GrantWanted(facts.session))

    def _on_return(self, facts: SessionFacts, message: messages.Return) -> None:
        if facts.view.epoch != message.epoch:
            return
        iteration_count = min(message.iteration_count, ITERATION_COUNT_MAX)
        handed_over = Epoch(message.successor_epoch) if message.handed_over else None
        if handed_over is not None and handed_over not in facts.view.offers:
            raise PeerError(f"hand-over refused: session {facts.session}: epoch {handed_over} was not offered")
        if handed_over is None:
            live = self._roster.get(facts.session)
            handed_over = self._executor.settle(live, facts) if live is not None and facts.view.offers else None
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

    def _on_overrun(self, facts: SessionFacts, live: LiveSession, message: messages.Overrun) -> None:
        live.overrun_serial, live.overrun_what = message.serial, message.what
        self._report(
            "overrun", facts, f"wants {message.persistent_bytes} persistent, {message.ephemeral_bytes} in a lane"
        )
        self._dispatcher.submit(events.SessionOverran(facts.session, message.persistent_bytes, message.ephemeral_bytes))

    # Losses

    def on_lost(self, connection: Connection) -> None:
        live = self._roster.get(connection.session)
        if live is None or live.connection is not connection:
            return
        live.connection = None
        self.watch_contact(live.session)

    def on_death(self, session: SessionId) -> None:
        """The pidfd signals: the process can write to nothing any more."""
        facts, live = self._dispatcher.state.sessions.get(session), self._roster.get(session)
        if facts is None or live is None:
            return
        for closer in live.closers:
            closer()
        live.closers.clear()
        if facts.view.is_leaving:
            self._executor.release(live, facts)
        else:
            self._executor.leave(session, "finished" if live.has_said_bye else "died")

    def watch_contact(self, session: SessionId) -> None:
        live = self._roster.get(session)
        if live is None:
            return
        live.lost_contact_ns = self._dispatcher.clock()
        self._loop.call_soon(self._check_contact, session)

    def _check_contact(self, session: SessionId) -> None:
        """A session without connection is over when it maps no lane; one that keeps a lane and is silent is ended."""
        facts, live = self._dispatcher.state.sessions.get(session), self._roster.get(session)
        if facts is None or live is None or facts.view.is_leaving or live.process is None:
            return
        if live.connection is not None and not live.has_said_bye:
            return
        state = live.process.state()
        if state is ProcessState.GONE or not self._lanes.is_mapped_by(facts, live):
            self._executor.leave(session, "disconnected")
            return
        is_late = self._dispatcher.clock() - live.lost_contact_ns > self._contact_timeout_ns()
        if is_late and state is not ProcessState.STOPPED:
            self._executor.end(facts, "it closed its connection and kept its lane")
        self._loop.call_later(CONTACT_POLL_S, self._check_contact, session)
