"""Drives the engine in tests: carries out commands as the executor would and keeps a real journal.

It knows nothing of lanes or order: it only remembers which answers are due, so that a test may give them late or in
another order, and what is really held, so that a test may check the engine's sums against it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from nodedaemon.core import commands as cmd
from nodedaemon.core import events as ev
from nodedaemon.core.engine import Engine
from nodedaemon.core.frozen import FrozenEngine, freeze, thaw
from nodedaemon.core.invariants import check
from nodedaemon.core.ordering import Policy
from nodedaemon.core.policies import make_policy
from nodedaemon.core.types import (
    MIB,
    DeviceId,
    DeviceLimits,
    Domain,
    Epoch,
    JobClass,
    JobId,
    LaneId,
    SessionId,
)

DEVICE = DeviceId("gpu0")


@dataclass
class Running:
    """A grant as the executor sees it."""

    lane: LaneId
    epoch: Epoch
    is_revoked: bool = False
    successor: tuple[SessionId, Epoch] | None = None
    limit: int | None = None
    iteration_count: int = 0
    contended_count: int = 0


@dataclass
class World:
    """Drives one engine; `due` holds the confirmations that the executor still owes."""

    limits: DeviceLimits
    policy: object = make_policy
    now_ns: int = 0
    journal: list[tuple[ev.Event, int]] = field(default_factory=list)
    told: list[cmd.Command] = field(default_factory=list)
    due: list[ev.Event] = field(default_factory=list)
    running: dict[SessionId, Running] = field(default_factory=dict)
    admitted: set[SessionId] = field(default_factory=set)
    gone: set[SessionId] = field(default_factory=set)
    held_bytes: dict[LaneId, int] = field(default_factory=dict)
    persistent_bytes: dict[SessionId, int] = field(default_factory=dict)
    wake_ns: int | None = None
    epochs: dict[str, Epoch] = field(default_factory=dict)
    is_checked: bool = True
    #: An engine that must answer as `engine` does; see `restart`.
    twin: Engine | None = None

    def __post_init__(self) -> None:
        self.engine = Engine(self.policy)  # type: ignore[arg-type]
        self.send(ev.DeviceAdded(DEVICE, self.limits))

    def send(self, event: ev.Event) -> list[cmd.Command]:
        self.journal.append((event, self.now_ns))
        commands = self.engine.handle(event, self.now_ns)
        if self.twin is not None:
            assert self.twin.handle(event, self.now_ns) == commands, "a thawed engine decides otherwise"
            assert freeze(self.twin) == freeze(self.engine)
        self.told.extend(commands)
        for command in commands:
            self._carry_out(command)
        if self.is_checked:
            real_bytes = sum(self.held_bytes.values()) + sum(self.persistent_bytes.values())
            assert real_bytes <= self.limits.capacity_bytes, "more is really held than the device has"
            check(self.engine, self.epochs)
        return commands

    def _carry_out(self, command: cmd.Command) -> None:
        match command:
            case cmd.AdmitSession(session, size_bytes):
                self.admitted.add(session)
                self.persistent_bytes[session] = size_bytes
            case cmd.OpenLane(lane, _, _, size_bytes, epoch):
                self.held_bytes[lane] = size_bytes
                self.due.append(ev.LaneOpened(lane, epoch))
            case cmd.ReleaseLane(lane, epoch):
                self.due.append(ev.LaneReleased(lane, epoch))
            case cmd.Grant(session, lane, epoch, limit):
                self.running[session] = Running(lane, epoch, limit=limit)
            case cmd.LimitGrant(session, epoch, count):
                grant = self.running[session]
                assert grant.epoch == epoch
                grant.limit = grant.iteration_count + 1 + count
                grant.contended_count = 0
            case cmd.Revoke(session, epoch, successor, successor_epoch):
                grant = self.running[session]
                assert grant.epoch == epoch
                grant.is_revoked = True
                grant.successor = None if successor is None or successor_epoch is None else (successor, successor_epoch)
            case cmd.ReleaseSession(session):
                self.due.append(ev.SessionReleased(session))
            case cmd.WakeAt(_, at_ns):
                self.wake_ns = at_ns
            case cmd.AllowOverrun(session, persistent_bytes, _):
                self.persistent_bytes[session] = persistent_bytes

    def restart(self, policy: Callable[[DeviceLimits], Policy]) -> None:
        """Go on with an engine made from the written state of this one, which stays as its judge."""
        payload = msgspec.json.encode(freeze(self.engine))
        self.twin, self.engine = self.engine, thaw(msgspec.json.decode(payload, type=FrozenEngine), policy)
        assert freeze(self.engine) == freeze(self.twin)
        assert self.engine.snapshot() == self.twin.snapshot()

    def confirm(self, index: int = 0) -> list[cmd.Command]:
        """Give one of the answers that are due."""
        event = self.due.pop(index)
        match event:
            case ev.LaneReleased(lane, _):
                self.held_bytes.pop(lane, None)
            case ev.SessionReleased(session):
                self.persistent_bytes.pop(session, None)
        return self.send(event)

    def confirm_all(self) -> None:
        answer_count = 0
        while self.due:
            self.confirm()
            answer_count += 1
            assert answer_count < 1000, "the engine moves bytes to and fro and lets nobody run"

    def arrive(self, session: int, persistent_mib: int, ephemeral_mib: int, **other: object) -> list[cmd.Command]:
        fields: dict[str, object] = {
            "domain": Domain("user:ada"),
            "job": JobId(str(session)),
            "job_class": JobClass.NORMAL,
        }
        fields.update(other)
        return self.send(
            ev.SessionArrived(
                session=SessionId(session),
                device=DEVICE,
                persistent_bytes=persistent_mib * MIB,
                ephemeral_bytes=ephemeral_mib * MIB,
                **fields,  # type: ignore[arg-type]
            )
        )

    def want(self, session: int) -> list[cmd.Command]:
        return self.send(ev.GrantWanted(SessionId(session)))

    def boundary(self, session: SessionId, *, wants_next: bool = True, hands_over: bool = True) -> bool:
        """The session ends an iteration: goes on under its lease, or returns the grant. True if it returned."""
        grant = self.running[session]
        grant.iteration_count += 1
        is_spent = grant.limit is not None and grant.iteration_count >= grant.limit
        if wants_next and not grant.is_revoked and not is_spent:
            if grant.limit is not None:
                grant.contended_count += 1
            return False
        del self.running[session]
        handed_over = None
        if grant.is_revoked and grant.successor is not None and hands_over:
            successor, epoch = grant.successor
            if successor not in self.gone:
                self.running[successor] = Running(grant.lane, epoch)
            handed_over = epoch
        self.send(
            ev.GrantReturned(
                session, grant.epoch, grant.iteration_count, grant.contended_count, wants_next, handed_over
            )
        )
        return True

    def leave(self, session: SessionId) -> None:
        self.running.pop(session, None)
        self.gone.add(session)
        self.send(ev.SessionLeft(session))

    def tick(self, at_ns: int | None = None) -> None:
        """Let time pass, to `at_ns` or to the moment that the engine asked for, and tell the engine."""
        self.now_ns = max(self.now_ns, at_ns if at_ns is not None else (self.wake_ns or self.now_ns))
        if self.wake_ns is not None and self.wake_ns <= self.now_ns:
            self.wake_ns = None
        self.send(ev.Ticked(DEVICE))

    def wait(self, span_ns: int) -> None:
        """Let time pass, ticking whenever the engine asked for it."""
        until_ns = self.now_ns + span_ns
        tick_count = 0
        while self.wake_ns is not None and self.wake_ns <= until_ns:
            self.tick()
            tick_count += 1
            assert tick_count < 200, "the engine asks to be woken again and again"
        self.now_ns = until_ns
