"""A simulated node with one device for tests of the engine.

A test sends events, and decides when and in which order the node's confirmations reach the engine. After each event
the engine's invariants are checked, and its sums are compared with the bytes that the node really holds.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from nodedaemon.core import commands as cmd
from nodedaemon.core import events as ev
from nodedaemon.core.engine import Engine
from nodedaemon.core.ordering import Policy
from nodedaemon.core.policies import make_policy
from nodedaemon.core.state.frozen import FrozenEngine, freeze, thaw
from nodedaemon.core.state.invariants import check
from nodedaemon.core.types import MIB, DeviceId, DeviceLimits, Domain, Epoch, JobId, SessionId
from nodedaemon.sim.node import SimulatedNode

DEVICE = DeviceId("gpu0")


class World(SimulatedNode):
    """Drives one engine and keeps its journal, as a daemon would."""

    def __init__(self, limits: DeviceLimits, policy: object = make_policy) -> None:
        super().__init__(Engine(policy))  # type: ignore[arg-type]
        self.limits = limits
        self.now_ns = 0
        self.journal: list[tuple[ev.Event, int]] = []
        self.commands: list[cmd.Command] = []
        self.epochs: dict[str, Epoch] = {}
        self.is_checked = True
        #: An engine that must decide as `engine` does; see `restart`.
        self.twin: Engine | None = None
        self.send(ev.DeviceAdded(DEVICE, limits))

    def send(self, event: ev.Event) -> list[cmd.Command]:
        self.journal.append((event, self.now_ns))
        commands = self.engine.handle(event, self.now_ns)
        if self.twin is not None:
            assert self.twin.handle(event, self.now_ns) == commands, "a thawed engine decides differently"
            assert freeze(self.twin) == freeze(self.engine)
        self.commands.extend(commands)
        for command in commands:
            self.carry_out(command, self.now_ns)
        if self.is_checked:
            real_bytes = sum(self.lane_bytes.values()) + sum(self.persistent_bytes.values())
            assert real_bytes <= self.limits.capacity_bytes, "more is really held than the device has"
            check(self.engine, self.epochs)
        return commands

    def restart(self, policy: Callable[[DeviceLimits], Policy]) -> None:
        """Continue with an engine restored from the frozen state. The old engine stays as the twin to compare with."""
        payload = msgspec.json.encode(freeze(self.engine))
        self.twin, self.engine = self.engine, thaw(msgspec.json.decode(payload, type=FrozenEngine), policy)
        assert freeze(self.engine) == freeze(self.twin)
        assert self.engine.snapshot() == self.twin.snapshot()

    def confirm(self, index: int = 0) -> list[cmd.Command]:
        """Deliver one of the confirmations that are due."""
        return self.send(self.next_event(index))

    def confirm_all(self) -> None:
        count = 0
        while self.due:
            self.confirm()
            count += 1
            assert count < 1000, "the engine moves bytes back and forth and lets no session run"

    def arrive(self, session: int, persistent_mib: int, ephemeral_mib: int, **other: object) -> list[cmd.Command]:
        fields = {"domain": Domain("user:ada"), "job": JobId(str(session)), **other}
        return self.send(
            ev.SessionArrived(
                session=SessionId(session),
                device=DEVICE,
                persistent_bytes=persistent_mib * MIB,
                ephemeral_bytes=ephemeral_mib * MIB,
                **fields,  # type: ignore[arg-type]
            )
        )

    def want(self, *sessions: int) -> list[cmd.Command]:
        """The sessions want a grant, one after the other. Returns the commands that the last one causes."""
        return [self.send(ev.GrantWanted(SessionId(session))) for session in sessions][-1]

    def boundary(self, session: SessionId, *, wants_next: bool = True, hands_over: bool = True) -> bool:
        """The session ends an iteration. Returns whether it gave its grant back."""
        grant = self.grants[session]
        grant.iteration_count += 1
        if wants_next and not grant.is_spent:
            return False
        self.send(self.return_grant(session, wants_next=wants_next, hands_over=hands_over))
        return True

    def commands_at_boundary(self, session: int, **options: bool) -> list[cmd.Command]:
        """The commands that follow from a boundary of the session."""
        command_count = len(self.commands)
        self.boundary(SessionId(session), **options)
        return self.commands[command_count:]

    def leave(self, session: SessionId) -> None:
        self.grants.pop(session, None)
        self.send(ev.SessionLeft(session))

    def tick(self, at_ns: int | None = None) -> None:
        """Let time pass, to `at_ns` or to the moment for which the engine asked, and tell the engine."""
        self.now_ns = max(self.now_ns, at_ns if at_ns is not None else (self.wake_ns or self.now_ns))
        if self.wake_ns is not None and self.wake_ns <= self.now_ns:
            self.wake_ns = None
        self.send(ev.Ticked(DEVICE))

    def wait(self, span_ns: int) -> None:
        """Let time pass, with a tick whenever the engine asked for one."""
        until_ns = self.now_ns + span_ns
        count = 0
        while self.wake_ns is not None and self.wake_ns <= until_ns:
            self.tick()
            count += 1
            assert count < 200, "the engine asks to be woken again and again"
        self.now_ns = until_ns


def make_world(session_count: int, **limits: object) -> World:
    """Sessions 1..n of one domain, each of 50 + 200 MiB, admitted and idle on a device of 1000 MiB."""
    world = World(DeviceLimits(1000 * MIB, **limits))  # type: ignore[arg-type]
    for session in range(1, session_count + 1):
        world.arrive(session, 50, 200)
    world.confirm_all()
    return world
