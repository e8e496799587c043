"""A small stand-in for salusd: real sockets, pages and lanes, a round of turns instead of the engine.

It keeps the protocol of docs/protocol.md to the letter, so that libsalus meets what salusd does, and it is short, so
that a test can say exactly what happens. All state belongs to the daemon's thread; tests use `call` and `wait_until`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from nodedaemon.core.errors import PeerError
from nodedaemon.wire import framing
from nodedaemon.wire.messages import (
    Allow,
    Bye,
    Deny,
    Fault,
    Hello,
    HelloFlag,
    Map,
    Message,
    Overrun,
    ProfileReport,
    Reject,
    Return,
    Started,
    Unmap,
    Unmapped,
    Want,
    Welcome,
    WelcomeFlag,
)
from tests.support.gate_pages import SEALS, SLOT_COUNT, GatePage, GateState, TurnPage

MIB = 1 << 20
DEADLINE_S = 20.0
#: As salusd does for a holder that was revoked.
LOOK_S = 0.02
T = TypeVar("T")


@dataclass
class Attached:
    """One session as the stand-in sees it."""

    session: int
    pid: int
    slot: int
    connection: socket.socket
    page: GatePage
    pidfd: int
    is_waiting: bool = False
    is_alive: bool = True
    armed_epoch: int = 0
    mapped: tuple[int, int] | None = None
    returns: list[Return] = field(default_factory=list)
    profiles: list[ProfileReport] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    overruns: list[Overrun] = field(default_factory=list)
    unmapped: list[Unmapped] = field(default_factory=list)
    has_said_bye: bool = False


@dataclass
class Settings:
    lane_bytes: int = 16 * MIB
    ephemeral_bytes: int = 16 * MIB
    persistent_bytes: int = 1 << 40
    device_bytes: int = 64 * MIB
    idle_release_ns: int = 0
    # As salusd says it; tests of what a flag changes name theirs.
    flags: int = WelcomeFlag.RELAY
    turn_iterations: int = 1
    # Sessions of one lane start each other by futex; otherwise every grant comes from the daemon.
    is_direct: bool = True
    # Every session in a domain of its own: lane memory is unmapped and created again between them.
    is_domain_each: bool = False
    # Nobody is granted anything until a test says so.
    is_held_back: bool = False
    allows_overrun: bool = True
    refusal: str = ""
    # What an earlier run learned of the job's boundaries.
    rule: str = ""


class LaneDaemon:
    def __init__(self, directory: Path, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.path = directory / "s.sock"
        self.sessions: dict[int, Attached] = {}
        self.turn = TurnPage.create()
        self.epoch = 0
        self.holder: Attached | None = None
        self.holder_epoch = 0
        self.holder_is_unlimited = False
        self.successor: Attached | None = None
        self.waiting: deque[Attached] = deque()
        self.grants: list[tuple[int, int]] = []
        self.handover_count = 0
        # Of those who could not say hello.
        self.early_faults: list[Fault] = []
        self.relay_count = 0
        self.lane_fd = -1
        self.lane_key = (0, 0)
        self.lane_owner: Attached | None = None
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, self._run_calls)
        self._is_ending = False
        self.error: BaseException | None = None
        self._listener: socket.socket | None = None
        self.listen()
        self._thread = threading.Thread(target=self._run, name="lane-daemon", daemon=True)
        self._thread.start()

    # For tests, from any thread.

    def call(self, action: Callable[[], T]) -> T:
        """Run `action` on the daemon's thread and give back its result."""
        answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                answers.put((action(), None))
            except BaseException as error:
                answers.put((None, error))

        self._calls.put(run)
        os.write(self._wake_writer, b"x")
        result, error = answers.get(timeout=DEADLINE_S)
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def wait_until(self, claim: Callable[[], T], what: str, deadline_s: float = DEADLINE_S) -> T:
        """Wait for an event that makes `claim` true; fails the test at the deadline."""
        deadline = time.monotonic() + deadline_s
        with self._changed:
            while True:
                if self.error is not None:
                    raise AssertionError(f"the stand-in daemon failed: {self.error!r}") from self.error
                if answer := claim():
                    return answer
                left_s = deadline - time.monotonic()
                assert left_s > 0, f"not within {deadline_s} s: {what}: {self.describe()}"
                self._changed.wait(min(left_s, 0.25))

    def wait_for_waiter(self, pid: int) -> None:
        """Until that process waits in the gate and the daemon knows it."""

        def is_waiting() -> bool:
            return any(session.pid == pid for session in [*self.waiting, self.successor] if session is not None)

        self.wait_until(is_waiting, f"process {pid} waits in the gate")

    def close(self) -> None:
        if not self._is_ending:
            self._is_ending = True
            os.write(self._wake_writer, b"x")
            self._thread.join(DEADLINE_S)
        self.stop_listening()
        for session in self.sessions.values():
            if session.is_alive:
                session.connection.close()
                os.close(session.pidfd)
                session.page.close()
        self.sessions.clear()
        if self.lane_fd >= 0:
            os.close(self.lane_fd)
        self.turn.close()
        self._selector.close()
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def lose_connections(self) -> None:
        """As a daemon's death looks to its sessions; `listen` brings it back."""
        self.stop_listening()
        for session in self.sessions.values():
            if session.is_alive:
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(session.connection)
                session.connection.close()

    def listen(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def stop_listening(self) -> None:
        if self._listener is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None
            self.path.unlink(missing_ok=True)

    def describe(self) -> str:
        """Who holds, who waits, and what the pages say: for the message of a test that failed."""
        lines = [f"holder={self.holder and self.holder.session} epoch={self.holder_epoch} last={self.epoch}"]
        lines.append(f"successor={self.successor and (self.successor.session, self.successor.armed_epoch)}")
        lines.append(f"waiting={[session.session for session in self.waiting]}")
        lines += [f"{session.session}: {session.page.read()}" for session in self.sessions.values() if session.is_alive]
        return "; ".join(lines)

    def held_bytes(self) -> int:
        return os.fstat(self.lane_fd).st_blocks * 512 if self.lane_fd >= 0 else 0

    # The daemon's thread.

    def _run(self) -> None:
        try:
            while not self._is_ending:
                for key, _ in self._selector.select(None if self.successor is None else LOOK_S):
                    key.data()
                self._look()
                with self._changed:
                    self._changed.notify_all()
        except BaseException as error:
            self.error = error
            with self._changed:
                self._changed.notify_all()

    def _look(self) -> None:
        """A successor that has done nothing since its start has told nobody of it: the holder's page says it too."""
        if self.holder is None or self.successor is None or not self.holder.is_alive:
            return
        reading = self.holder.page.read()
        is_left = reading.state in (GateState.WAITING, GateState.OUT) and reading.epoch == self.holder_epoch
        if is_left and self.successor.page.read().epoch >= self.successor.armed_epoch:
            self._leave_holder()
            self.schedule()

    def _run_calls(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_reader, 4096)
        while not self._calls.empty():
            self._calls.get()()

    def _accept(self) -> None:
        assert self._listener is not None
        connection, _ = self._listener.accept()
        received = framing.receive(connection)
        if received is None:
            connection.close()
            return
        hello, descriptors = received
        if isinstance(hello, Fault):
            self.early_faults.append(hello)
            connection.close()
            return
        assert isinstance(hello, Hello)
        if self.settings.refusal:
            framing.send(connection, Reject(self.settings.refusal))
            connection.close()
        elif hello.flags & HelloFlag.RESUME:
            self._resume(connection, hello)
        else:
            self._welcome(connection, hello)
        for descriptor in descriptors:
            os.close(descriptor)

    def _welcome(self, connection: socket.socket, hello: Hello) -> None:
        number = len(self.sessions) + 1
        page = GatePage.create(number)
        taken = {session.slot for session in self.sessions.values() if session.is_alive}
        slot = next(slot for slot in range(SLOT_COUNT) if slot not in taken)
        session = Attached(number, hello.pid, slot, connection, page, os.pidfd_open(hello.pid))
        self.sessions[number] = session
        self._selector.register(session.pidfd, selectors.EVENT_READ, lambda: self._died(session))
        self._attach(session, connection)

    def _attach(self, session: Attached, connection: socket.socket) -> None:
        settings = self.settings
        session.connection = connection
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._serve(session))
        welcome = Welcome(
            session=session.session,
            device_bytes=settings.device_bytes,
            persistent_bytes=settings.persistent_bytes,
            ephemeral_bytes=settings.ephemeral_bytes,
            idle_release_ns=settings.idle_release_ns,
            flags=settings.flags,
            slot=session.slot,
            rule=settings.rule,
        )
        framing.send(connection, welcome, [session.page.fd, self.turn.fd])

    def _resume(self, connection: socket.socket, hello: Hello) -> None:
        session = self.sessions[hello.session]
        # What the session did while nobody listened: its RETURN was lost, or an offer of ours was taken.
        has_started = session is self.successor and hello.grant_epoch == session.armed_epoch
        has_returned = session is self.holder and not hello.grant_epoch
        if has_started or has_returned:
            self._leave_holder()
        self._attach(session, connection)
        self.schedule()

    def _serve(self, session: Attached) -> None:
        try:
            received = framing.receive(session.connection)
        except (OSError, PeerError):
            received = None
        if received is None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(session.connection)
            return
        self._handle(session, received[0])

    def _handle(self, session: Attached, message: Message) -> None:
        match message:
            case Want():
                self._wait(session)
            case Return():
                self._returned(session, message)
            case Started():
                self._started(session, message)
            case Unmapped():
                session.unmapped.append(message)
                session.mapped = None
            case ProfileReport():
                session.profiles.append(message)
            case Fault():
                session.faults.append(message)
            case Overrun():
                session.overruns.append(message)
                self._answer(session, message)
            case Bye():
                session.has_said_bye = True
            case _:
                raise AssertionError(f"a session sent {message}")
        self.schedule()

    def _answer(self, session: Attached, overrun: Overrun) -> None:
        if self.settings.allows_overrun:
            caps = (overrun.persistent_bytes, self.settings.ephemeral_bytes)
            framing.send(session.connection, Allow(*caps, serial=overrun.serial))
        else:
            framing.send(session.connection, Deny(overrun.serial, text="no bytes are free"))

    def _wait(self, session: Attached) -> None:
        # After a lost connection the session says again that it waits.
        if not session.is_waiting and session not in (self.holder, self.successor):
            session.is_waiting = True
            self.waiting.append(session)

    def _wait_by_page(self, holder: Attached) -> None:
        """A holder that took its successor may send no RETURN: where its page says that it waits, it does."""
        if holder.is_alive and holder.page.read().state is GateState.WAITING:
            self._wait(holder)

    def _returned(self, session: Attached, message: Return) -> None:
        session.returns.append(message)
        # Two sockets know no order: a successor's RETURN may come before that of the holder who started it.
        if session is self.successor and message.epoch == session.armed_epoch:
            self._leave_holder()
        if session is self.holder and message.epoch == self.holder_epoch:
            self._leave_holder()
        if message.wants_next:
            self._wait(session)

    def _started(self, session: Attached, message: Started) -> None:
        """The holder left it to its successor to tell; the holder's own page says whether it waits again."""
        if session is self.successor and message.epoch == session.armed_epoch:
            self.relay_count += 1
            self._leave_holder()

    def _leave_holder(self) -> None:
        """The holder is done; whoever it named holds now if it has started, and nobody does otherwise."""
        holder, successor = self.holder, self.successor
        assert holder is not None
        self.holder = self.successor = None
        if successor is None:
            return
        self._wait_by_page(holder)
        holder.page.name_successor(0, 0)
        if successor.page.disarm(successor.armed_epoch):
            self.holder, self.holder_epoch = successor, successor.armed_epoch
            self.holder_is_unlimited = False
            self.handover_count += 1
            self.grants.append((successor.session, successor.armed_epoch))
        elif successor.is_alive:
            successor.is_waiting = True
            self.waiting.appendleft(successor)

    def _drain(self, session: Attached) -> None:
        """What a session said before its death still counts."""
        with contextlib.suppress(OSError, PeerError):
            session.connection.setblocking(False)
            while (received := framing.receive(session.connection)) is not None:
                self._handle(session, received[0])

    def _died(self, session: Attached) -> None:
        self._selector.unregister(session.pidfd)
        self._drain(session)
        session.is_alive = False
        if session in self.waiting:
            self.waiting.remove(session)
        if session is self.holder:
            self._leave_holder()
        elif session is self.successor:
            assert self.holder is not None
            was_taken = self.holder.page.name_successor(0, 0) == 0
            self.successor = None
            if was_taken:
                # The holder's RETURN is on its way and will find nobody behind it, or does not come.
                holder, self.holder = self.holder, None
                self._wait_by_page(holder)
        if self.holder is not None and not self.holder.is_alive:
            self.holder = None
        if self.lane_owner is session:
            session.mapped = None
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(session.connection)
        session.connection.close()
        session.page.close()
        os.close(session.pidfd)
        self.schedule()

    def schedule(self) -> None:
        if self.settings.is_held_back or not self.waiting:
            return
        if self.holder is None:
            self._start(self.waiting[0])
        if self.holder is not None and self.successor is None and self.waiting:
            self._prepare_return(self.holder)

    def _prepare_return(self, holder: Attached) -> None:
        heir = self.waiting[0]
        if holder.page.take_idle(self.holder_epoch):
            self.holder = None
            self._start(heir)
            return
        if self.settings.is_direct and not self.settings.is_domain_each and heir.mapped == self.lane_key:
            self.waiting.popleft()
            heir.is_waiting = False
            self.epoch += 1
            heir.armed_epoch = self.epoch
            heir.page.arm(
                lane=self.lane_key[0],
                lane_epoch=self.lane_key[1],
                epoch=self.epoch,
                limit=self.settings.turn_iterations,
            )
            holder.page.name_successor(heir.slot, self.epoch)
            self.successor = heir
        if self.holder_is_unlimited:
            has_started = holder.page.read().epoch == self.holder_epoch
            holder.page.limit(self.holder_epoch, 0 if has_started else self.settings.turn_iterations)
            self.holder_is_unlimited = False

    def _start(self, session: Attached) -> None:
        if not self._give_lane(session):
            return
        self.waiting.remove(session)
        session.is_waiting = False
        self.epoch += 1
        self.holder, self.holder_epoch = session, self.epoch
        self.holder_is_unlimited = not self.waiting
        self.grants.append((session.session, self.epoch))
        session.page.grant(
            self.turn,
            session.slot,
            lane=self.lane_key[0],
            lane_epoch=self.lane_key[1],
            epoch=self.epoch,
            limit=self.settings.turn_iterations if self.waiting else None,
        )

    def _give_lane(self, session: Attached) -> bool:
        """True once the lane is open for this session; False while it is not connected or another has it mapped."""
        if session.connection.fileno() < 0:
            return False
        if self.settings.is_domain_each and self.lane_owner not in (None, session):
            assert self.lane_owner is not None
            if self.lane_owner.is_alive and self.lane_owner.mapped is not None:
                with contextlib.suppress(OSError):
                    framing.send(self.lane_owner.connection, Unmap(*self.lane_owner.mapped))
                self.lane_owner.mapped = (0, 0)
                return False
            if self.lane_owner.is_alive and self.lane_owner.mapped is not None:
                return False
            os.close(self.lane_fd)
            self.lane_fd = -1
        if self.lane_fd < 0:
            self.lane_fd = os.memfd_create("lane", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(self.lane_fd, self.settings.lane_bytes)
            fcntl.fcntl(self.lane_fd, fcntl.F_ADD_SEALS, SEALS)
            self.epoch += 1
            self.lane_key = (self.lane_key[0] + 1, self.epoch)
        self.lane_owner = session
        if session.mapped != self.lane_key:
            lane = Map(*self.lane_key, self.settings.lane_bytes, self.settings.ephemeral_bytes)
            try:
                framing.send(session.connection, lane, [self.lane_fd])
            except OSError:
                # It is dead or lost, which its pidfd or its next hello will say.
                return False
            session.mapped = self.lane_key
        return True
