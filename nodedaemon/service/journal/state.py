"""The shell's state: what the daemon knows and the engine cannot know.

The engine owns every decision: grants, epochs, limits, successors, sizes, counts. The shell reads them through
`SessionFacts.view` and `ShellState.engine` and keeps no copy. What is left is kept here: jobs as Slurm announced them,
the process and the shared pages of a session, the memory that a session maps, and the memory of a lane.

This state changes in two ways only. A note changes it directly, and every note is written to the journal. An event that
the engine has handled adds and removes whole entries (`follow`). A snapshot is the list of notes that gives the same
state again, so there is one format for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from nodedaemon.core import events
from nodedaemon.core.commands import CloseLane, Command, Grant
from nodedaemon.core.engine import Engine
from nodedaemon.core.events import Event
from nodedaemon.core.state.lanes import LaneState
from nodedaemon.core.state.views import SessionView
from nodedaemon.core.types import DeviceId, Domain, JobClass, JobId, LaneId, SessionId


class ProcessFacts(msgspec.Struct, frozen=True):
    """A process by pid and start time; `pid` is 0 if none has attached yet."""

    pid: int = 0
    start_ticks: int = 0


class JobFacts(msgspec.Struct, frozen=True):
    """A job as Slurm's hooks or `salus run` announced it. A change is a new value in a `JobNote`."""

    job: JobId
    number: int
    uid: int
    user: str = ""
    account: str = ""
    partition: str = ""
    qos: str = ""
    name: str = ""
    restart_count: int = 0
    sluid: str = ""
    signature: str = ""
    admission: str = ""
    device: DeviceId = DeviceId("")
    devices: tuple[DeviceId, ...] = ()
    domain: Domain = Domain("")
    persistent_bytes: int = 0
    ephemeral_bytes: int = 0
    job_class: JobClass = JobClass.NORMAL
    weight: int = 1
    remaining_ns: int | None = None
    kind: str = "shared"
    is_local: bool = False
    profile_persistent_bytes: int = 0
    profile_ephemeral_bytes: int = 0
    profile_model_hash: str = ""
    profile_input_hash: str = ""
    boundary_rule: str = ""
    roots: tuple[ProcessFacts, ...] = ()
    start_utc_ns: int = 0
    start_mono_ns: int = 0
    is_ended: bool = False
    #: Sessions of the job that Salus had to end.
    ended_session_count: int = 0
    #: Minutes added to its time limit for the time it waited at the gate.
    extended_minutes: int = 0
    #: The cgroup in which the driver limits its device memory; "" without such a limit.
    cgroup: str = ""


class JobNote(msgspec.Struct, tag="job", frozen=True):
    facts: JobFacts


class JobGone(msgspec.Struct, tag="job_gone", frozen=True):
    job: JobId


class SessionNote(msgspec.Struct, tag="session", frozen=True):
    """Written before the session's `SessionArrived`, and again when its process has attached."""

    session: SessionId
    job: JobId
    device: DeviceId
    uid: int
    start_utc_ns: int
    start_mono_ns: int
    process: ProcessFacts = ProcessFacts()
    page: str = ""
    turn: str = ""
    slot: int = 0


class EndNote(msgspec.Struct, tag="end", frozen=True):
    """Why the session ends; the last reason counts."""

    session: SessionId
    reason: str


class MappedNote(msgspec.Struct, tag="mapped", frozen=True):
    """The session was sent a lane's memory (epoch > 0), or the kernel shows that it no longer holds it (epoch 0)."""

    session: SessionId
    lane: LaneId
    epoch: int


class MemoryNote(msgspec.Struct, tag="memory", frozen=True):
    """The memory created for an `OpenLane`: the epoch of that command, and how to recognise the memory."""

    lane: LaneId
    epoch: int
    identity: str


class DigestNote(msgspec.Struct, tag="digest", frozen=True):
    """A hash of the engine's state at this point; a replay must reproduce it."""

    digest: str


class CounterNote(msgspec.Struct, tag="counter", frozen=True):
    """The next free ids. No id is used twice, not even across restarts."""

    session_next: int
    job_next: int


Note = JobNote | JobGone | SessionNote | EndNote | MappedNote | MemoryNote | DigestNote | CounterNote
_note_encoder = msgspec.msgpack.Encoder()
_note_decoder: msgspec.msgpack.Decoder[Note] = msgspec.msgpack.Decoder(Note)
_notes_decoder: msgspec.msgpack.Decoder[list[Note]] = msgspec.msgpack.Decoder(list[Note])


def encode_note(note: Note) -> bytes:
    return _note_encoder.encode(note)


def decode_note(payload: bytes) -> Note:
    return _note_decoder.decode(payload)


@dataclass(slots=True, eq=False)
class SessionFacts:
    """One session: its identity, its process and its memory. `view` shows what the engine has decided about it."""

    view: SessionView
    session: SessionId
    job: JobId
    device: DeviceId
    uid: int
    start_utc_ns: int = 0
    start_mono_ns: int = 0
    process: ProcessFacts = field(default_factory=ProcessFacts)
    page: str = ""
    turn: str = ""
    slot: int = 0
    end_reason: str = ""
    #: The lane memory that the process was sent and may still map: the lane, and the epoch of the memory.
    mapped_lane: LaneId | None = None
    mapped_epoch: int = 0

    def has_returned(self, made: Sequence[Command]) -> bool:
        """Whether the engine accepted the `GrantReturned` that led to these commands.

        It ignores a late return, and one on a lane that the session keeps. Then the session still runs, under a grant
        that none of these commands made.
        """
        is_granted_again = any(isinstance(one, Grant) and one.session == self.session for one in made)
        return self.view.epoch is None or is_granted_again

    def note(self) -> SessionNote:
        return SessionNote(**{name: getattr(self, name) for name in SessionNote.__struct_fields__})


class ShellState:
    """All of the shell's state. Sessions and lane memory exist only while the engine has the session or the lane."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.jobs: dict[JobId, JobFacts] = {}
        self.sessions: dict[SessionId, SessionFacts] = {}
        self.memories: dict[LaneId, MemoryNote] = {}
        self.session_next = 1
        self.job_next = 1
        #: Sessions that the engine has not seen yet: their `SessionArrived` comes next.
        self._announced: dict[SessionId, SessionNote] = {}

    @classmethod
    def decode(cls, engine: Engine, payload: bytes) -> ShellState:
        """The state that `encode` wrote. `engine` is that of the same snapshot."""
        state = cls(engine)
        for note in _notes_decoder.decode(payload):
            state.apply(note)
        return state

    def encode(self) -> bytes:
        return _note_encoder.encode(list(self._notes()))

    def _notes(self) -> Iterator[Note]:
        yield CounterNote(self.session_next, self.job_next)
        yield from (JobNote(job) for job in self.jobs.values())
        for facts in self.sessions.values():
            yield facts.note()
            if facts.end_reason:
                yield EndNote(facts.session, facts.end_reason)
            if facts.mapped_lane is not None:
                yield MappedNote(facts.session, facts.mapped_lane, facts.mapped_epoch)
        yield from self.memories.values()
        yield from self._announced.values()

    def apply(self, note: Note) -> None:
        match note:
            case JobNote():
                self.jobs[note.facts.job] = note.facts
            case JobGone():
                self.jobs.pop(note.job, None)
            case SessionNote():
                self._apply_session(note)
            case EndNote() if note.session in self.sessions:
                self.sessions[note.session].end_reason = note.reason
            case MappedNote() if note.session in self.sessions:
                session = self.sessions[note.session]
                session.mapped_lane = note.lane if note.epoch else None
                session.mapped_epoch = note.epoch
            case MemoryNote() if self.engine.lane(note.lane) is not None:
                self.memories[note.lane] = note
            case CounterNote():
                self.session_next, self.job_next = note.session_next, note.job_next
            case _:
                pass

    def follow(self, event: Event, commands: Sequence[Command]) -> None:
        """After the engine has handled an event, add or remove the entries that the event creates or ends."""
        match event:
            case events.SessionArrived():
                self._apply_session(self._announced.pop(event.session))
            case events.SessionLeft() | events.SessionReleased():
                # A session that was never admitted is gone when it leaves, any other when its memory is free.
                if self.engine.session(event.session) is None:
                    self.sessions.pop(event.session, None)
            case events.LaneReleased() | events.LaneFailed():
                self._forget_memory(event.lane)
            case _:
                pass
        for command in commands:
            if isinstance(command, CloseLane):
                self.memories.pop(command.lane, None)

    def live_sessions(self, job: JobId) -> list[SessionFacts]:
        return [session for session in self.sessions.values() if session.job == job and not session.view.is_leaving]

    def _apply_session(self, note: SessionNote) -> None:
        view = self.engine.session(note.session)
        facts = self.sessions.get(note.session)
        if view is None:
            self._announced[note.session] = note
        elif facts is None:
            fields = {name: getattr(note, name) for name in note.__struct_fields__}
            self.sessions[note.session] = SessionFacts(view, **fields)
        else:
            facts.process, facts.page, facts.turn, facts.slot = note.process, note.page, note.turn, note.slot

    def _forget_memory(self, lane_id: LaneId) -> None:
        """Drop the record of memory that the engine no longer counts. A late answer that it ignored drops nothing."""
        memory, lane = self.memories.get(lane_id), self.engine.lane(lane_id)
        if memory is None or lane is None or lane.state is LaneState.RELEASING:
            return
        if lane.state is LaneState.PARKED or lane.epoch != memory.epoch:
            del self.memories[lane_id]
