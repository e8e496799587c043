"""What the shell knows beside the engine: whose process a session is, which memory a lane has, what was last ordered.

Everything here can be written down and read again, so a daemon that was killed continues where it was: a snapshot, the
journal's notes, and the commands that its events give again. `ShellState` changes in three ways only: a note, an event,
a command; carrying a command out belongs to the executor, which may do it a second time after a restart.
"""

from __future__ import annotations

import msgspec

from nodedaemon.core import commands, events
from nodedaemon.core.commands import Command
from nodedaemon.core.events import Event
from nodedaemon.core.types import DeviceId, Domain, JobClass, JobId, LaneId, SessionId


class ProcessFacts(msgspec.Struct, frozen=True):
    """A process by pid and start time; `pid` 0 where no process has come yet."""

    pid: int = 0
    start_ticks: int = 0


class JobFacts(msgspec.Struct):
    """A job as Slurm's hooks or `salus run` made it known."""

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
    devices: list[DeviceId] = []
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
    roots: list[ProcessFacts] = []
    start_utc_ns: int = 0
    start_mono_ns: int = 0
    is_ended: bool = False
    #: Added to its time limit for what it waited at the gate.
    extended_minutes: int = 0
    #: Where the driver limits its device memory; "" where it does not.
    cgroup: str = ""


class SessionFacts(msgspec.Struct):
    """One session: who it is (note), and what was last ordered of it (commands and events)."""

    session: SessionId
    job: JobId
    device: DeviceId
    domain: Domain
    uid: int
    process: ProcessFacts = ProcessFacts()
    persistent_bytes: int = 0
    ephemeral_bytes: int = 0
    is_gated: bool = True
    page: str = ""
    turn: str = ""
    slot: int = 0
    start_utc_ns: int = 0
    start_mono_ns: int = 0
    # From commands and events.
    is_admitted: bool = False
    is_leaving: bool = False
    end_reason: str = ""
    lane: LaneId | None = None
    #: Lane memory handed to the process and not known to be dropped: lane and epoch of its opening.
    mapped_lane: LaneId | None = None
    mapped_epoch: int = 0
    grant_epoch: int | None = None
    granted_lane: LaneId | None = None
    iteration_limit: int | None = None
    is_limited_further: bool = False
    is_revoked: bool = False
    revoked_ns: int = 0
    successor: SessionId | None = None
    successor_epoch: int | None = None
    #: Every successor named under this grant; one that was taken before its replacement came may still start.
    offers: dict[int, SessionId] = {}
    is_waiting: bool = False
    is_stopped: bool = False
    waiting_since_ns: int = 0
    iteration_count: int = 0
    handover_count: int = 0


class LaneFacts(msgspec.Struct):
    """A lane's memory. `epoch` is that of the last order; `memory_epoch` that of the memory which it has, if any."""

    lane: LaneId
    device: DeviceId
    domain: Domain
    size_bytes: int = 0
    epoch: int = 0
    memory_epoch: int = 0
    identity: str = ""
    is_open: bool = False
    is_releasing: bool = False


class JobNote(msgspec.Struct, tag="job", frozen=True):
    facts: JobFacts


class JobGone(msgspec.Struct, tag="job_gone", frozen=True):
    job: JobId


class SessionNote(msgspec.Struct, tag="session", frozen=True):
    """Written before its `SessionArrived`, and again when its process is known."""

    session: SessionId
    job: JobId
    device: DeviceId
    domain: Domain
    uid: int
    process: ProcessFacts
    is_gated: bool
    page: str
    turn: str
    slot: int
    start_utc_ns: int
    start_mono_ns: int


class MappedNote(msgspec.Struct, tag="mapped", frozen=True):
    """The session was handed a lane's memory (epoch > 0) or was seen to have dropped it (epoch 0)."""

    session: SessionId
    lane: LaneId
    epoch: int


class MemoryNote(msgspec.Struct, tag="memory", frozen=True):
    """The memory made for an `OpenLane`."""

    lane: LaneId
    epoch: int
    identity: str


class DigestNote(msgspec.Struct, tag="digest", frozen=True):
    """A hash of the engine's state at this place; replay must come to the same one."""

    digest: str


class CounterNote(msgspec.Struct, tag="counter", frozen=True):
    """Ids are never given twice, also not over a restart."""

    session_next: int
    job_next: int


Note = JobNote | JobGone | SessionNote | MappedNote | MemoryNote | DigestNote | CounterNote
_note_encoder = msgspec.msgpack.Encoder()
_note_decoder: msgspec.msgpack.Decoder[Note] = msgspec.msgpack.Decoder(Note)


def encode_note(note: Note) -> bytes:
    return _note_encoder.encode(note)


def decode_note(payload: bytes) -> Note:
    return _note_decoder.decode(payload)


class ShellState(msgspec.Struct):
    """All of it; `encode` and `decode` are the snapshot's format."""

    jobs: dict[JobId, JobFacts] = {}
    sessions: dict[SessionId, SessionFacts] = {}
    lanes: dict[LaneId, LaneFacts] = {}
    session_next: int = 1
    job_next: int = 1

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, payload: bytes) -> ShellState:
        return msgspec.msgpack.decode(payload, type=cls)

    def take_note(self, note: Note) -> None:
        match note:
            case JobNote():
                self.jobs[note.facts.job] = note.facts
            case JobGone():
                self.jobs.pop(note.job, None)
            case SessionNote():
                self._take_session(note)
            case MappedNote():
                session = self.sessions.get(note.session)
                if session is not None:
                    session.mapped_lane = note.lane if note.epoch else None
                    session.mapped_epoch = note.epoch
            case MemoryNote():
                lane = self.lanes.get(note.lane)
                if lane is not None:
                    lane.identity, lane.memory_epoch = note.identity, note.epoch
            case CounterNote():
                self.session_next, self.job_next = note.session_next, note.job_next
            case DigestNote():
                pass

    def take_event(self, event: Event, now_ns: int) -> None:
        """Called once the engine has taken the event, before its commands."""
        match event:
            case events.SessionArrived():
                session = self.sessions[event.session]
                session.persistent_bytes, session.ephemeral_bytes = event.persistent_bytes, event.ephemeral_bytes
            case events.GrantWanted():
                self._start_waiting(event.session, now_ns)
            case events.GrantReturned():
                self._take_return(event, now_ns)
            case events.LaneOpened():
                lane = self.lanes.get(event.lane)
                if lane is not None and lane.epoch == event.epoch:
                    lane.is_open = True
            case events.LaneReleased() | events.LaneFailed():
                lane = self.lanes.get(event.lane)
                if lane is not None and lane.epoch == event.epoch:
                    lane.is_open = lane.is_releasing = False
                    lane.identity, lane.memory_epoch, lane.size_bytes = "", 0, 0
            case events.SessionStopped() | events.SessionContinued():
                session = self.sessions[event.session]
                session.is_stopped = isinstance(event, events.SessionStopped)
            case events.SessionUngated():
                self.sessions[event.session].is_gated = False
            case events.SessionLeft():
                session = self.sessions[event.session]
                session.is_leaving, session.is_waiting = True, False
                session.iteration_count += event.iteration_count
                _drop_grant(session)
                # Before its admission the engine keeps nothing of it, and asks for no release.
                if not session.is_admitted:
                    del self.sessions[event.session]
            case events.SessionReleased():
                self.sessions.pop(event.session, None)
            case _:
                pass

    def take_command(self, command: Command, now_ns: int) -> None:
        """Called before the command is carried out; says nothing about whether it was."""
        match command:
            case commands.OpenLane():
                self.lanes[command.lane] = LaneFacts(
                    command.lane, command.device, command.domain, command.bytes, command.epoch
                )
            case commands.ReleaseLane():
                lane = self.lanes[command.lane]
                lane.epoch, lane.is_releasing = command.epoch, True
            case commands.CloseLane():
                self.lanes.pop(command.lane, None)
            case _:
                session = self.sessions.get(command.session) if hasattr(command, "session") else None
                if session is not None:
                    _take_session_command(session, command, now_ns)

    def members(self, lane: LaneId) -> list[SessionFacts]:
        """Sessions whose process may still map the lane's present memory."""
        facts = self.lanes.get(lane)
        return [
            session
            for session in self.sessions.values()
            if facts is not None and session.mapped_lane == lane and session.mapped_epoch == facts.memory_epoch
        ]

    def live_sessions(self, job: JobId) -> list[SessionFacts]:
        return [session for session in self.sessions.values() if session.job == job and not session.is_leaving]

    def _take_session(self, note: SessionNote) -> None:
        known = self.sessions.get(note.session)
        facts = known or SessionFacts(note.session, note.job, note.device, note.domain, note.uid)
        facts.process, facts.is_gated = note.process, note.is_gated
        facts.page, facts.turn, facts.slot = note.page, note.turn, note.slot
        facts.start_utc_ns, facts.start_mono_ns = note.start_utc_ns, note.start_mono_ns
        self.sessions[note.session] = facts

    def _start_waiting(self, session_id: SessionId, now_ns: int) -> None:
        session = self.sessions[session_id]
        session.is_waiting, session.waiting_since_ns = True, now_ns

    def _take_return(self, event: events.GrantReturned, now_ns: int) -> None:
        session = self.sessions[event.session]
        if session.grant_epoch != event.epoch:
            return
        session.iteration_count += event.iteration_count
        lane, offers = session.granted_lane, session.offers
        _drop_grant(session)
        if event.wants_next:
            self._start_waiting(event.session, now_ns)
        successor = self.sessions.get(offers.get(event.handed_over or 0, SessionId(0)))
        if event.handed_over is not None and successor is not None:
            session.handover_count += 1
            _start(successor, event.handed_over, lane, None)


def _start(session: SessionFacts, epoch: int, lane: LaneId | None, limit: int | None) -> None:
    _drop_grant(session)
    session.grant_epoch, session.granted_lane, session.iteration_limit = epoch, lane, limit
    session.is_waiting = False


def _drop_grant(session: SessionFacts) -> None:
    session.grant_epoch = session.granted_lane = session.iteration_limit = None
    session.successor = session.successor_epoch = None
    session.is_revoked = session.is_limited_further = False
    session.offers = {}


def _take_session_command(session: SessionFacts, command: Command, now_ns: int) -> None:
    match command:
        case commands.AdmitSession():
            session.is_admitted, session.persistent_bytes = True, command.persistent_bytes
        case commands.BindSession():
            session.lane = command.lane
        case commands.Grant():
            # A grant that repeats what a hand-over has done already changes nothing.
            if session.grant_epoch != command.epoch:
                _start(session, command.epoch, command.lane, command.iteration_limit)
        case commands.LimitGrant():
            if session.grant_epoch == command.epoch:
                session.iteration_limit, session.is_limited_further = command.iteration_count, True
        case commands.Revoke():
            if session.grant_epoch == command.epoch:
                if not session.is_revoked:
                    session.is_revoked, session.revoked_ns = True, now_ns
                session.successor, session.successor_epoch = command.successor, command.successor_epoch
                if command.successor is not None and command.successor_epoch is not None:
                    session.offers[command.successor_epoch] = command.successor
        case commands.AllowOverrun():
            session.persistent_bytes, session.ephemeral_bytes = command.persistent_bytes, command.ephemeral_bytes
        case commands.EndSession():
            session.end_reason = command.reason
        case _:
            pass
