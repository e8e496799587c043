"""One place where events meet the engine: journal first, then the engine, then the commands, in order.

Events that arise while commands are carried out wait their turn. `recover` takes a journal's segment through the same
steps with nothing carried out, so a restarted daemon and `salus simulate --replay` come to the state that was.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from nodedaemon.core.commands import Command
from nodedaemon.core.engine import Engine
from nodedaemon.core.errors import OperatingError, PeerError, RequestError, SalusError
from nodedaemon.core.events import Event
from nodedaemon.core.frozen import FORMAT, FrozenEngine, freeze, thaw
from nodedaemon.core.invariants import check
from nodedaemon.service.journal.segments import EventRecord, Journal, NoteRecord, Segment, decode_event
from nodedaemon.service.journal.state import DigestNote, Note, ShellState, decode_note, encode_note

#: Events between two digests in the journal. One costs about as much as ten events with a dozen sessions.
DIGEST_INTERVAL_COUNT = 500


def engine_digest(engine: Engine) -> str:
    return hashlib.sha256(repr(engine.snapshot()).encode()).hexdigest()[:32]


class _Format(msgspec.Struct):
    format: int


def freeze_engine(engine: Engine) -> bytes:
    """JSON, because service numbers outgrow 64 bits; and an admin can read it."""
    return msgspec.json.encode(freeze(engine))


def thaw_engine(payload: bytes) -> Engine:
    """Read a snapshot. Raises `OperatingError` for one of another format, damaged, or of a state that cannot be."""
    try:
        found = msgspec.json.decode(payload, type=_Format).format
        if found != FORMAT:
            raise OperatingError(f"read journal: snapshot: format {found}, this release reads {FORMAT}")
        engine = thaw(msgspec.json.decode(payload, type=FrozenEngine))
        check(engine, {})
    except (msgspec.DecodeError, AssertionError) as error:
        raise OperatingError(f"read journal: snapshot: {error}") from error
    return engine


@dataclass(slots=True)
class Replay:
    """What a segment leads to. `mismatch_count` must be 0: each is a digest that replay did not reproduce."""

    engine: Engine
    state: ShellState
    event_count: int = 0
    digest_count: int = 0
    mismatch_count: int = 0
    last_ns: int = 0


def replay(segment: Segment, on_commands: Callable[[Event, int, list[Command]], None] | None = None) -> Replay:
    """Take the segment's records through engine and state; raises `OperatingError` where that cannot be done."""
    engine = thaw_engine(segment.snapshot.engine) if segment.snapshot.engine else Engine()
    state = ShellState.decode(segment.snapshot.shell) if segment.snapshot.shell else ShellState()
    result = Replay(engine, state)
    for record in segment.records:
        if isinstance(record, EventRecord):
            event = decode_event(record)
            commands = step(engine, state, event, record.now_ns)
            result.event_count += 1
            result.last_ns = record.now_ns
            if on_commands is not None:
                on_commands(event, record.now_ns, commands)
            continue
        assert isinstance(record, NoteRecord)
        note = decode_note(record.payload)
        state.take_note(note)
        if isinstance(note, DigestNote):
            result.digest_count += 1
            result.mismatch_count += note.digest != engine_digest(engine)
    _drop_halves(engine, state)
    return result


def _drop_halves(engine: Engine, state: ShellState) -> None:
    """A journal may end between a note and its event: what the engine never heard of does not exist."""
    known = {session.session for device in engine.snapshot().devices for session in device.sessions}
    for session in set(state.sessions) - known:
        del state.sessions[session]


def step(engine: Engine, state: ShellState, event: Event, now_ns: int) -> list[Command]:
    """One event through engine and state. What the engine refuses has changed nothing and gives no commands."""
    try:
        commands = engine.handle(event, now_ns)
    except (PeerError, RequestError):
        return []
    state.take_event(event, now_ns)
    for command in commands:
        state.take_command(command, now_ns)
    return commands


@dataclass(slots=True)
class Dispatcher:
    engine: Engine
    state: ShellState
    clock: Callable[[], int]
    journal: Journal | None = None
    digest_interval_count: int = DIGEST_INTERVAL_COUNT
    carry_out: Callable[[Command], None] = lambda _: None
    on_refused: Callable[[Event, SalusError], None] = lambda _event, _error: None
    watch: Callable[[Event, list[Command], int], None] = lambda _event, _commands, _now: None
    event_count: int = 0
    _queue: deque[Event] = field(default_factory=deque)
    _is_busy: bool = False

    def submit(self, event: Event) -> None:
        """Take an event in, now or after those before it. A refusal goes to `on_refused`."""
        self._queue.append(event)
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._queue:
                self._take(self._queue.popleft())
        finally:
            self._is_busy = False

    def ask(self, event: Event) -> None:
        """As `submit`, for an admin's wish: a refusal is raised instead."""
        refused: list[SalusError] = []
        previous, self.on_refused = self.on_refused, lambda _event, error: refused.append(error)
        try:
            self.submit(event)
        finally:
            self.on_refused = previous
        if refused:
            raise refused[0]

    def note(self, note: Note) -> None:
        self.state.take_note(note)
        if self.journal is not None:
            self.journal.append_note(encode_note(note))

    def snapshot(self) -> tuple[bytes, bytes]:
        return freeze_engine(self.engine), self.state.encode()

    def _take(self, event: Event) -> None:
        now_ns = self.clock()
        if self.journal is not None:
            self.journal.rotate_if_due()
            self.journal.append_event(event, now_ns)
        try:
            commands = self.engine.handle(event, now_ns)
        except (PeerError, RequestError) as error:
            self.on_refused(event, error)
            return
        self.state.take_event(event, now_ns)
        for command in commands:
            self.state.take_command(command, now_ns)
        self.event_count += 1
        if self.journal is not None and self.event_count % self.digest_interval_count == 0:
            self.note(DigestNote(engine_digest(self.engine)))
        self.watch(event, commands, now_ns)
        for command in commands:
            self.carry_out(command)
