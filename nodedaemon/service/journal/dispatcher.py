"""The only path by which an event reaches the engine, when it happens and when a journal is replayed.

Theory of operation. State lives in two places: the engine decides, `ShellState` keeps what the engine cannot know. Both
change here and nowhere else. An event goes through five steps, in this order:

1. The event and the time are written to the journal.
2. `Engine.handle` changes the engine's state and returns commands. A refused event changes nothing.
3. `ShellState.follow` adds or removes the entries that the event creates or ends.
4. The observers see the event and its commands.
5. The executor carries out the commands.

Carrying out a command often leads to further events, such as `LaneOpened`. They wait in the queue until all commands of
the current event are carried out, so a command never runs against a state that a later event has changed already.
Facts that no event carries are notes: `note` applies one to `ShellState` and writes it to the journal.

Why a restart loses nothing: an event is in the journal before anything depends on it, the engine is deterministic, and
`replay` runs the same `process` (steps 2 and 3, nothing carried out). So the state after a replay is the state that
the killed daemon had, except for commands that it had not carried out yet. Commands are safe to carry out twice, and
`sessions.recovery` repeats those that may not have arrived. `DigestNote` checks the claim: every few hundred events the
daemon writes a hash of the engine's state, and a replay compares it with its own.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from nodedaemon.core.commands import Command
from nodedaemon.core.engine import Engine
from nodedaemon.core.errors import OperatingError, PeerError, RequestError, SalusError
from nodedaemon.core.events import Event
from nodedaemon.core.state.frozen import FORMAT, FrozenEngine, freeze, thaw
from nodedaemon.core.state.invariants import check
from nodedaemon.core.types import JobId
from nodedaemon.service.journal.segments import EventRecord, Journal, Segment, decode_event
from nodedaemon.service.journal.state import DigestNote, JobFacts, JobNote, Note, ShellState, decode_note, encode_note

#: Events between two digests in the journal. A digest costs about as much as ten events with a dozen sessions.
DIGEST_INTERVAL_COUNT = 500


def engine_digest(engine: Engine) -> str:
    return hashlib.sha256(repr(engine.snapshot()).encode()).hexdigest()[:32]


class _Format(msgspec.Struct):
    format: int


def freeze_engine(engine: Engine) -> bytes:
    """Encode as JSON: service numbers exceed 64 bits, and an admin can read it."""
    return msgspec.json.encode(freeze(engine))


def thaw_engine(payload: bytes) -> Engine:
    """Read a snapshot. Raises `OperatingError` if it has another format, is damaged, or breaks an invariant."""
    try:
        format_number = msgspec.json.decode(payload, type=_Format).format
        if format_number != FORMAT:
            raise OperatingError(f"read journal: snapshot: format {format_number}, this release reads {FORMAT}")
        engine = thaw(msgspec.json.decode(payload, type=FrozenEngine))
        check(engine, {})
    except (msgspec.DecodeError, AssertionError) as error:
        raise OperatingError(f"read journal: snapshot: {error}") from error
    return engine


class CommandExecutor(Protocol):
    """Carries out the engine's commands."""

    def carry_out(self, command: Command) -> None:
        """May submit events; they are handled after all commands of the current event."""

    def on_refused(self, event: Event, error: SalusError) -> None:
        """The engine refused an event and changed nothing."""


class EventObserver(Protocol):
    """Sees every event with its commands before they are carried out, for example to count or to record them."""

    def watch(self, event: Event, commands: list[Command], now_ns: int) -> None: ...


class Dispatcher:
    """Accepts events and notes. `executor` and `observers` are set once, before the first event."""

    def __init__(
        self,
        state: ShellState,
        clock: Callable[[], int],
        journal: Journal | None = None,
        digest_interval_count: int = DIGEST_INTERVAL_COUNT,
    ) -> None:
        self.state = state
        self.engine = state.engine
        self.clock = clock
        self.journal = journal
        self.executor: CommandExecutor | None = None
        self.observers: list[EventObserver] = []
        self.event_count = 0
        self._digest_interval_count = digest_interval_count
        self._queue: deque[Event] = deque()
        self._is_busy = False

    def submit(self, event: Event) -> None:
        """Handle the event, now or after those before it. A refusal goes to the executor."""
        if self._is_busy:
            self._queue.append(event)
            return
        refusal = self._handle(event)
        if refusal is not None:
            self._report(event, refusal)

    def request(self, event: Event) -> None:
        """Like `submit`, for an admin's request: raises the error if the engine refuses it."""
        assert not self._is_busy, f"{event}: a command must not make a request"
        refusal = self._handle(event)
        if refusal is not None:
            raise refusal

    def note(self, note: Note) -> None:
        self.state.apply(note)
        if self.journal is not None:
            self.journal.append_note(encode_note(note))

    def change_job(self, job: JobId, **changes: Any) -> JobFacts | None:
        """Change fields of a job and return its new value; None if the job is gone."""
        if job not in self.state.jobs:
            return None
        facts = msgspec.structs.replace(self.state.jobs[job], **changes)
        self.note(JobNote(facts))
        return facts

    def carry_out(self, command: Command) -> None:
        """Carry out a command of the engine, or one that the shell adds, such as the end of a session."""
        if self.executor is not None:
            self.executor.carry_out(command)

    def snapshot(self) -> tuple[bytes, bytes]:
        return freeze_engine(self.engine), self.state.encode()

    def process(self, event: Event, now_ns: int) -> list[Command]:
        """Apply one event to the engine and the state. Raises `PeerError` or `RequestError` if the engine refuses it.

        Public for `replay`. All other callers use `submit`, which also carries out the commands.
        """
        if self.journal is not None:
            self.journal.rotate_if_due()
            self.journal.append_event(event, now_ns)
        commands = self.engine.handle(event, now_ns)
        self.state.follow(event, commands)
        self.event_count += 1
        if self.journal is not None and self.event_count % self._digest_interval_count == 0:
            self.note(DigestNote(engine_digest(self.engine)))
        for observer in self.observers:
            observer.watch(event, commands, now_ns)
        return commands

    def _handle(self, event: Event) -> SalusError | None:
        """Handle the event, then those that its commands lead to. Returns the refusal of `event`, if any."""
        self._is_busy = True
        try:
            refusal = self._step(event)
            while self._queue:
                following = self._queue.popleft()
                error = self._step(following)
                if error is not None:
                    self._report(following, error)
        finally:
            self._is_busy = False
        return refusal

    def _step(self, event: Event) -> SalusError | None:
        try:
            commands = self.process(event, self.clock())
        except (PeerError, RequestError) as error:
            return error
        for command in commands:
            self.carry_out(command)
        return None

    def _report(self, event: Event, error: SalusError) -> None:
        if self.executor is not None:
            self.executor.on_refused(event, error)


@dataclass(slots=True)
class Replay:
    """The state that a segment leads to. Each mismatch is a digest that the replay did not reproduce."""

    state: ShellState
    event_count: int = 0
    digest_count: int = 0
    mismatch_count: int = 0
    last_ns: int = 0

    @property
    def engine(self) -> Engine:
        return self.state.engine


def replay(segment: Segment, on_commands: Callable[[Event, int, list[Command]], None] | None = None) -> Replay:
    """Process the segment's records with nothing carried out. Raises `OperatingError` if that is not possible."""
    engine = thaw_engine(segment.snapshot.engine) if segment.snapshot.engine else Engine()
    shell = segment.snapshot.shell
    result = Replay(ShellState.decode(engine, shell) if shell else ShellState(engine))
    dispatcher = Dispatcher(result.state, lambda: result.last_ns)
    for record in segment.records:
        if isinstance(record, EventRecord):
            event, result.last_ns = decode_event(record), record.now_ns
            result.event_count += 1
            try:
                commands = dispatcher.process(event, record.now_ns)
            except (PeerError, RequestError):
                commands = []  # the daemon refused it too
            if on_commands is not None:
                on_commands(event, record.now_ns, commands)
            continue
        note = decode_note(record.payload)
        dispatcher.note(note)
        if isinstance(note, DigestNote):
            result.digest_count += 1
            result.mismatch_count += note.digest != engine_digest(engine)
    return result
