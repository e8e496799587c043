"""The states of a session: one process of a job attached to one device.

docs/sessions.md is generated from the transition table. Any other transition is a bug or a misbehaving peer; the error
lists the last steps of the session.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from nodedaemon.core.errors import PeerError
from nodedaemon.core.fairness import SCALE_BITS
from nodedaemon.core.ordering import Waiting
from nodedaemon.core.types import Domain, Epoch, JobClass, JobId, SessionId

if TYPE_CHECKING:
    from nodedaemon.core.state.lanes import Lane


class SessionState(StrEnum):
    ARRIVING = "arriving"  # claims its persistent bytes
    IDLE = "idle"  # admitted; wants no grant now
    WAITING = "waiting"  # at a boundary, blocked in the gate
    RUNNING = "running"  # holds a grant
    REVOKED = "revoked"  # holds a grant that ends at the next boundary
    UNGATED = "ungated"  # admitted without a lane: its persistent bytes are its peak
    LEAVING = "leaving"  # its process is gone; its memory is not reported free yet


TRANSITIONS: dict[SessionState, frozenset[SessionState]] = {
    SessionState.ARRIVING: frozenset({SessionState.IDLE, SessionState.UNGATED}),
    SessionState.IDLE: frozenset({SessionState.WAITING, SessionState.UNGATED, SessionState.LEAVING}),
    SessionState.WAITING: frozenset({SessionState.RUNNING, SessionState.LEAVING}),
    SessionState.RUNNING: frozenset(
        {SessionState.REVOKED, SessionState.WAITING, SessionState.IDLE, SessionState.LEAVING}
    ),
    SessionState.REVOKED: frozenset(
        {SessionState.RUNNING, SessionState.WAITING, SessionState.IDLE, SessionState.LEAVING}
    ),
    SessionState.UNGATED: frozenset({SessionState.LEAVING}),
    SessionState.LEAVING: frozenset(),
}

#: Position of a waiter: urgency, class (if the policy uses classes), the policy's key, the order of waiting.
Place = tuple[int, int, tuple[int, ...], int]

HOLDING = frozenset({SessionState.RUNNING, SessionState.REVOKED})

#: Number of steps that an error lists.
RECENT_STEPS_MAX = 12


@dataclass(slots=True)
class SessionValues:
    """The fields of a session that are plain values. `core.state.frozen` stores them as they are."""

    id: SessionId
    job: JobId
    domain: Domain
    persistent_bytes: int
    ephemeral_bytes: int
    job_class: JobClass
    weight: int
    remaining_ns: int | None
    arrival_order: int
    #: The part of its job's charge that the session may use: its sizes at its arrival, or 0 for further sessions.
    charged_persistent_bytes: int = 0
    charged_ephemeral_bytes: int = 0
    state: SessionState = SessionState.ARRIVING
    is_placed: bool = False
    is_stopped: bool = False
    is_suspended: bool = False
    is_ungated: bool = False
    # Waiting: since when, and which entry of its lane's heap is the valid one.
    wanted_ns: int = 0
    wait_order: int = 0
    place: Place = (0, 0, (), 0)
    # Holding: the grant's epoch, its limit, and what the service clock showed when it began.
    epoch: Epoch | None = None
    is_served: bool = False
    granted_ns: int = 0
    granted_bytes: int = 0
    iteration_limit: int | None = None
    #: The limit came with a `LimitGrant` while the grant was held, not with the `Grant` itself.
    is_limited_later: bool = False
    granted_plain: int = 0
    granted_grown: int = 0
    revoked_ns: int = 0
    is_reported: bool = False
    #: Since when its lane, which it cannot return, or its excess keeps a placed session from running (`round.reclaim`).
    blocking_ns: int | None = None
    successor: SessionId | None = None
    offers: dict[Epoch, SessionId] = field(default_factory=dict)
    # Accounting.
    service_plain: int = 0
    virtual: int = 0
    iteration_count: int = 0
    handover_count: int = 0
    waited_ns: int = 0
    recent_steps: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Session(SessionValues):
    """The state of a session. Only the engine changes it."""

    lane: Lane | None = None

    def step(self, state: SessionState, now_ns: int) -> None:
        """Move to `state`. Raises `PeerError` with the last steps if the table does not allow it."""
        if state not in TRANSITIONS[self.state]:
            raise PeerError(
                f"session step refused: session {self.id} of job {self.job}: {self.state} to {state}; "
                f"last steps: {' '.join(self.recent_steps)}"
            )
        self.state = state
        self.recent_steps.append(f"{state}@{now_ns}")
        if len(self.recent_steps) > RECENT_STEPS_MAX:
            del self.recent_steps[0]

    @property
    def is_holding(self) -> bool:
        return self.state in HOLDING

    @property
    def is_admitted(self) -> bool:
        return self.state is not SessionState.ARRIVING

    @property
    def is_leaving(self) -> bool:
        return self.state is SessionState.LEAVING

    @property
    def is_waiting(self) -> bool:
        return self.state is SessionState.WAITING

    @property
    def is_queued(self) -> bool:
        """Whether the session waits and could run: a stopped session waits for nothing."""
        return self.state is SessionState.WAITING and not self.is_stopped

    @property
    def is_revoked(self) -> bool:
        return self.state is SessionState.REVOKED

    @property
    def is_gated(self) -> bool:
        """Iterations of the session run in a lane and wait for grants."""
        return self.ephemeral_bytes > 0 and not self.is_ungated

    @property
    def lease_limit(self) -> int | None:
        """Iterations that may start under the current grant, from its beginning on; None for no limit.

        `iteration_limit` leaves out the first iteration of a grant that began with a limit. A pinned lane has none.
        """
        if self.iteration_limit is None or self.lane is None or self.lane.is_pinned:
            return None
        return self.iteration_limit + (0 if self.is_limited_later else 1)

    @property
    def successor_epoch(self) -> Epoch | None:
        """The epoch under which the named successor would run: that of the last offer."""
        return next(reversed(self.offers)) if self.successor is not None else None

    def view(self, plain: int = 0, grown: int = 0) -> Waiting:
        """The session as a policy sees it. The clock readings add the service of a running grant."""
        remaining_ns, virtual = self.remaining_ns, self.virtual
        if self.is_served:
            virtual += (grown - self.granted_grown) // self.weight
            if remaining_ns is not None:
                remaining_ns -= (plain - self.granted_plain) >> SCALE_BITS
        return Waiting(self.id, self.arrival_order, self.job_class, self.weight, remaining_ns, virtual, self.wanted_ns)
