"""A node that carries out the engine's commands, without time and without devices.

`SimulatedNode` carries out commands as the daemon's executor would: it holds lane memory, runs sessions under grants
and queues the confirmations that the engine expects. The simulator delivers them at once. Tests of the core deliver
them late, in another order or not at all.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from nodedaemon.core import commands as cmd
from nodedaemon.core import events as ev
from nodedaemon.core.confirmations import confirmation
from nodedaemon.core.engine import Engine
from nodedaemon.core.types import Epoch, LaneId, SessionId


@dataclass(slots=True)
class HeldGrant:
    """A grant as the session that holds it sees it. Counts are iterations since the grant began."""

    lane: LaneId
    epoch: Epoch
    #: The session returns the grant at this boundary; None while nothing limits it.
    stop_count: int | None = None
    #: Iterations from this one on overtake a waiter.
    contended_from: int | None = None
    iteration_count: int = 0
    revoked_ns: int | None = None
    successor: tuple[SessionId, Epoch] | None = None

    @property
    def is_spent(self) -> bool:
        """Whether the session must return the grant at this boundary."""
        return self.stop_count is not None and self.iteration_count >= self.stop_count

    @property
    def contended_count(self) -> int:
        return 0 if self.contended_from is None else max(0, self.iteration_count - self.contended_from)


class SimulatedNode:
    """The lanes, grants and memory of a node, as the commands of its engine left them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        #: Events that the engine has not seen yet, in the order in which they happened.
        self.due: deque[ev.Event] = deque()
        self.grants: dict[SessionId, HeldGrant] = {}
        self.admitted: set[SessionId] = set()
        self.lane_bytes: dict[LaneId, int] = {}
        self.persistent_bytes: dict[SessionId, int] = {}
        self.wake_ns: int | None = None

    def carry_out(self, command: cmd.Command, now_ns: int) -> None:
        """Carry out the command, and queue the confirmation that the engine expects."""
        match command:
            case cmd.AdmitSession(session, size_bytes):
                self.admitted.add(session)
                self.persistent_bytes[session] = size_bytes
            case cmd.OpenLane(lane, _, _, size_bytes):
                self.lane_bytes[lane] = size_bytes
            case cmd.Grant(session, lane, epoch, limit):
                self.grants[session] = HeldGrant(lane, epoch, limit, None if limit is None else 1)
            case cmd.LimitGrant(session, epoch, count):
                grant = self._grant_of(session, epoch)
                # The iteration under way has started already.
                grant.contended_from = grant.iteration_count + 1
                grant.stop_count = grant.contended_from + count
            case cmd.Revoke(session, epoch, successor, successor_epoch):
                grant = self._grant_of(session, epoch)
                if grant.revoked_ns is None:
                    grant.revoked_ns, grant.stop_count = now_ns, grant.iteration_count + 1
                grant.successor = None if successor is None or successor_epoch is None else (successor, successor_epoch)
            case cmd.ReleaseSession(session):
                self.admitted.discard(session)
            case cmd.WakeAt(_, at_ns):
                self.wake_ns = at_ns
            case cmd.AllowOverrun(session, persistent_bytes, _):
                self.persistent_bytes[session] = persistent_bytes
        event = confirmation(command)
        if event is not None:
            self.due.append(event)

    def _grant_of(self, session: SessionId, epoch: Epoch) -> HeldGrant:
        grant = self.grants[session]
        assert grant.epoch == epoch, f"session {session}: a command for epoch {epoch}, but it holds {grant.epoch}"
        return grant

    def next_event(self, index: int = 0) -> ev.Event:
        """Remove one event from the queue. A confirmed release frees its bytes."""
        event = self.due[index]
        del self.due[index]
        match event:
            case ev.LaneReleased(lane) | ev.LaneFailed(lane):
                self.lane_bytes.pop(lane, None)
            case ev.SessionReleased(session):
                self.persistent_bytes.pop(session, None)
        return event

    def return_grant(self, session: SessionId, *, wants_next: bool, hands_over: bool) -> ev.GrantReturned:
        """End the session's grant at a boundary. With `hands_over` it starts its named successor directly."""
        grant = self.grants.pop(session)
        handed_over = None
        if hands_over and grant.successor is not None:
            successor, handed_over = grant.successor
            if successor in self.admitted:
                self.grants[successor] = HeldGrant(grant.lane, handed_over)
        return ev.GrantReturned(
            session, grant.epoch, grant.iteration_count, grant.contended_count, wants_next, handed_over
        )
