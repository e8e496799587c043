"""Lanes and their device: sums of bytes, best fit, and the order in which lanes are released.

A lane is open (holds bytes) or parked (holds none). Bytes count from the request until the release is confirmed.
`core.round.claims` decides whose turn it is; nothing here does.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from nodedaemon.core.fairness import SCALE_BITS, ServiceBook, ServiceClock
from nodedaemon.core.memory import charge_bytes
from nodedaemon.core.ordering import Breadth, Ordering
from nodedaemon.core.state.sessions import Place, Session
from nodedaemon.core.state.waiting import WaitList
from nodedaemon.core.types import DeviceId, DeviceLimits, Domain, Epoch, JobClass, LaneId, SessionId


class LaneState(StrEnum):
    PARKED = "parked"  # holds no bytes
    OPENING = "opening"  # bytes are counted; the memory is not allocated yet
    OPEN = "open"
    RELEASING = "releasing"  # bytes are counted until they are reported free


#: All transitions of a lane (docs/sessions.md).
LANE_TRANSITIONS: dict[LaneState, frozenset[LaneState]] = {
    LaneState.PARKED: frozenset({LaneState.OPENING}),
    LaneState.OPENING: frozenset({LaneState.OPEN, LaneState.RELEASING, LaneState.PARKED}),
    LaneState.OPEN: frozenset({LaneState.RELEASING}),
    LaneState.RELEASING: frozenset({LaneState.PARKED}),
}


@dataclass(slots=True)
class LaneValues:
    """The fields of a lane that are plain values. `core.state.frozen` stores them as they are."""

    id: LaneId
    domain: Domain
    state: LaneState = LaneState.PARKED
    held_bytes: int = 0
    epoch: Epoch = field(default=Epoch(0))
    is_pinned: bool = False
    opened_ns: int = 0
    returned_ns: int = 0
    last_class: JobClass = JobClass.NORMAL
    retry_ns: int = 0


@dataclass(slots=True, eq=False)
class Lane(LaneValues):
    """A slice of device memory in which iterations run one at a time. It always belongs to the same domain."""

    device: DeviceId = field(kw_only=True)
    sessions: dict[SessionId, Session] = field(default_factory=dict)
    holder: Session | None = None
    waiters: list[tuple[Place, SessionId]] = field(default_factory=list)
    _sizes: list[tuple[int, SessionId]] = field(default_factory=list)

    def step(self, state: LaneState) -> None:
        assert state in LANE_TRANSITIONS[self.state], f"lane {self.id}: {self.state} to {state}"
        self.state = state

    def join(self, session: Session) -> None:
        self.sessions[session.id] = session
        session.lane = self
        self.note_size(session)

    def note_size(self, session: Session) -> None:
        heapq.heappush(self._sizes, (-session.ephemeral_bytes, session.id))

    def leave(self, session: Session) -> None:
        del self.sessions[session.id]
        session.lane = None

    @property
    def target_bytes(self) -> int:
        """The size that the largest session of the lane needs."""
        return _largest_bytes(self._sizes, self.sessions)

    def first_waiter(self) -> tuple[Place, Session] | None:
        """The first waiter of this lane, or None. Outdated entries of the heap are dropped."""
        heap = self.waiters
        while heap:
            place, session_id = heap[0]
            session = self.sessions.get(session_id)
            if session is not None and session.wait_order == place[3] and session.is_queued:
                return place, session
            heapq.heappop(heap)
        return None

    @property
    def is_idle(self) -> bool:
        return self.state is LaneState.OPEN and self.holder is None

    @property
    def is_stuck(self) -> bool:
        """Whether the holder reaches no boundary: it is stopped, hung or ungated."""
        holder = self.holder
        return self.is_pinned or (holder is not None and (holder.is_stopped or holder.is_reported))

    @property
    def is_joinable(self) -> bool:
        """Whether sessions may move to this lane."""
        return self.state in (LaneState.OPEN, LaneState.OPENING) and not self.is_stuck


def _largest_bytes(heap: list[tuple[int, SessionId]], sessions: dict[SessionId, Session]) -> int:
    """The largest ephemeral size in a heap of negative sizes. Outdated entries of the heap are dropped."""
    while heap:
        session = sessions.get(heap[0][1])
        if session is not None and session.ephemeral_bytes == -heap[0][0]:
            return -heap[0][0]
        heapq.heappop(heap)
    return 0


@dataclass(slots=True)
class DeviceValues:
    """The fields of a device that are plain values. `core.state.frozen` stores them as they are."""

    id: DeviceId
    limits: DeviceLimits
    clock: ServiceClock
    #: Why an admin drained the device, possibly empty; None while it is not drained.
    drain_reason: str | None = None
    lost_reason: str | None = None
    persistent_bytes: int = 0
    held_bytes: int = 0
    releasing_bytes: int = 0
    epoch: int = 0
    wait_order: int = 0
    wake_ns: int | None = None
    running: dict[JobClass, int] = field(default_factory=lambda: dict.fromkeys(JobClass, 0))


@dataclass(slots=True, eq=False)
class Device(DeviceValues):
    """One device with its lanes, sessions and sums. `free_bytes` is never negative."""

    ordering: Ordering = field(kw_only=True)
    book: ServiceBook = field(default_factory=ServiceBook)
    waits: dict[JobClass, WaitList] = field(default_factory=lambda: {job_class: WaitList() for job_class in JobClass})
    sessions: dict[SessionId, Session] = field(default_factory=dict)
    arrivals: dict[SessionId, Session] = field(default_factory=dict)
    lanes: dict[LaneId, Lane] = field(default_factory=dict)
    open_lanes: dict[LaneId, Lane] = field(default_factory=dict)
    domains: dict[Domain, dict[LaneId, Lane]] = field(default_factory=dict)
    #: Sessions that use or claim more than their job was charged for.
    over_charge: dict[SessionId, Session] = field(default_factory=dict)
    _parked: list[tuple[Place, LaneId]] = field(default_factory=list)
    _sizes: list[tuple[int, SessionId]] = field(default_factory=list)

    @property
    def free_bytes(self) -> int:
        return self.limits.capacity_bytes - self.persistent_bytes - self.held_bytes

    @property
    def is_drained(self) -> bool:
        return self.drain_reason is not None

    def next_epoch(self) -> Epoch:
        self.epoch += 1
        return Epoch(self.epoch)

    # Service

    def start_service(self, session: Session) -> None:
        """The session uses the device from now on."""
        session.granted_plain, session.granted_grown = self.clock.plain, self.clock.grown
        session.is_served = True
        self.clock.busy_count += 1
        self.running[session.job_class] += 1

    def stop_service(self, session: Session) -> None:
        """Credit the service since `start_service`, if there was one."""
        if not session.is_served:
            return
        plain = self.clock.plain - session.granted_plain
        session.service_plain += plain
        session.virtual += (self.clock.grown - session.granted_grown) // session.weight
        if session.remaining_ns is not None:
            session.remaining_ns -= plain >> SCALE_BITS
        self.book.update(session.id, session.virtual)
        session.is_served = False
        self.clock.busy_count -= 1
        self.running[session.job_class] -= 1

    def charge_blocking(self, session: Session, now_ns: int) -> None:
        """The session no longer keeps others from running. The time in which it did counts as if it had run."""
        if session.blocking_ns is not None:
            session.virtual += (now_ns - session.blocking_ns) * self.clock.growth() // session.weight
            if session.is_holding or session.is_waiting:
                self.book.update(session.id, session.virtual)
            session.blocking_ns = None

    def note_running_service(self) -> None:
        """Update the service of all holders, before a session is raised to the minimum."""
        for lane in self.open_lanes.values():
            if lane.holder is not None and lane.holder.is_served:
                view = lane.holder.view(self.clock.plain, self.clock.grown)
                self.book.update(lane.holder.id, view.virtual_service)

    def rescale(self, bits: int) -> None:
        """Shift the service of all sessions back when the service clock is rebased."""
        for session in self.sessions.values():
            session.virtual >>= bits
            session.granted_grown >>= bits
        self.book.shift(bits)

    def wait_class(self, session: Session) -> JobClass:
        """The class in which overtaking is counted: the session's own if the policy uses classes, else one for all."""
        return session.job_class if self.ordering.breadth is Breadth.CLASS else JobClass.NORMAL

    def waits_of(self, session: Session) -> WaitList:
        return self.waits[self.wait_class(session)]

    # Lanes

    def add_lane(self, lane: Lane) -> None:
        self.lanes[lane.id] = lane
        self.domains.setdefault(lane.domain, {})[lane.id] = lane

    def drop_lane(self, lane: Lane) -> None:
        del self.lanes[lane.id]
        peers = self.domains[lane.domain]
        del peers[lane.id]
        if not peers:
            del self.domains[lane.domain]

    def hold(self, lane: Lane, size_bytes: int) -> None:
        """Count the bytes of a lane that is being opened."""
        lane.step(LaneState.OPENING)
        lane.held_bytes, lane.epoch = size_bytes, self.next_epoch()
        self.held_bytes += size_bytes
        self.open_lanes[lane.id] = lane

    def start_release(self, lane: Lane) -> None:
        lane.step(LaneState.RELEASING)
        lane.epoch = self.next_epoch()
        self.releasing_bytes += lane.held_bytes

    def end_release(self, lane: Lane) -> None:
        """The bytes of the lane are free, or were never allocated."""
        if lane.state is LaneState.RELEASING:
            self.releasing_bytes -= lane.held_bytes
        self.held_bytes -= lane.held_bytes
        lane.step(LaneState.PARKED)
        lane.held_bytes = 0
        del self.open_lanes[lane.id]
        self.note_parked(lane)

    # Order of waiters, and of the lanes that hold no bytes

    def enqueue(self, session: Session, now_ns: int) -> None:
        """The session begins to wait, behind all sessions that already wait with the same key."""
        self.wait_order += 1
        session.wanted_ns, session.wait_order = now_ns, self.wait_order
        session.place = self._place(session, now_ns)
        if not session.is_stopped:
            self.waits_of(session).append(session.id)
            self.add_waiter(session)

    def _place(self, session: Session, now_ns: int) -> Place:
        # Ungated sessions go first. The class precedes the policy's key here, so that no policy can ignore it.
        urgency = 0 if session.is_ungated else 2
        job_class = int(session.job_class) if self.ordering.breadth is Breadth.CLASS else 0
        return (urgency, job_class, self.ordering.key(session.view(), now_ns), session.wait_order)

    def rekey(self, now_ns: int) -> None:
        """Compute the position of every waiter again."""
        for lane in self.lanes.values():
            lane.waiters.clear()
        self._parked.clear()
        self.waits = {job_class: WaitList() for job_class in JobClass}
        waiting = (session for session in self.sessions.values() if session.is_queued)
        for session in sorted(waiting, key=lambda one: one.wait_order):
            session.place = self._place(session, now_ns)
            self.waits_of(session).append(session.id)
            self.add_waiter(session)

    def add_waiter(self, session: Session) -> None:
        """Put a waiter into the order of its lane."""
        lane = session.lane
        assert lane is not None
        heapq.heappush(lane.waiters, (session.place, session.id))
        if lane.state is LaneState.PARKED:
            self.note_parked(lane)

    def note_parked(self, lane: Lane) -> None:
        """A parked lane has a new first waiter, or a lane with waiters was parked."""
        first = lane.first_waiter()
        if first is not None:
            heapq.heappush(self._parked, (first[0], lane.id))

    def first_parked(self) -> tuple[Place, Lane] | None:
        """The parked lane whose first waiter precedes those of all other parked lanes."""
        heap = self._parked
        while heap:
            place, lane_id = heap[0]
            lane = self.lanes.get(lane_id)
            first = lane.first_waiter() if lane is not None and lane.state is LaneState.PARKED else None
            if lane is not None and first is not None and first[0] == place:
                return place, lane
            heapq.heappop(heap)
            if lane is not None and first is not None:
                heapq.heappush(heap, (first[0], lane_id))
        return None

    # Sizes

    def note_size(self, session: Session) -> None:
        heapq.heappush(self._sizes, (-session.ephemeral_bytes, session.id))

    @property
    def ephemeral_bytes_max(self) -> int:
        """The largest ephemeral size of all admitted sessions."""
        return _largest_bytes(self._sizes, self.sessions)

    @property
    def pinned_bytes(self) -> int:
        return sum(lane.held_bytes for lane in self.stuck_lanes())

    def stuck_lanes(self) -> list[Lane]:
        """Lanes whose holder reaches no boundary."""
        return [lane for lane in self.open_lanes.values() if lane.is_stuck]

    def can_always_run(self, more_persistent_bytes: int, ephemeral_bytes: int = 0) -> bool:
        """Whether sum P + largest E <= C still holds with these sizes, so that every session can make progress."""
        return self.lack_bytes(more_persistent_bytes, ephemeral_bytes) <= 0

    def lack_bytes(
        self, more_persistent_bytes: int, ephemeral_bytes: int = 0, without: Collection[Session] = ()
    ) -> int:
        """The bytes that are missing for `can_always_run` if the sessions in `without` were gone.

        Only their holders can use stuck lanes.
        """
        largest = max(self.ephemeral_bytes_max, ephemeral_bytes)
        stuck = [lane for lane in self.stuck_lanes() if lane.holder not in without]
        if stuck or without:
            holders = [lane.holder for lane in stuck]
            rest = [one for one in self.sessions.values() if one.is_admitted and one not in without]
            others = (one.ephemeral_bytes for one in rest if one not in holders)
            stuck_bytes = sum(lane.held_bytes for lane in stuck)
            largest = max(ephemeral_bytes, *(one.ephemeral_bytes for one in rest), 0)
            largest = max(largest, stuck_bytes + max(ephemeral_bytes, max(others, default=0)))
        gone_bytes = sum(one.persistent_bytes for one in without)
        return self.persistent_bytes - gone_bytes + more_persistent_bytes + largest - self.limits.capacity_bytes

    def can_pin(self, session: Session) -> bool:
        """Whether every other session could still run if this one kept its lane forever.

        It keeps the whole lane, which may be larger than it needs if others shared it.
        """
        lane = session.lane
        own_bytes = session.ephemeral_bytes if lane is None else max(lane.held_bytes, lane.target_bytes)
        if session.is_holding and lane is not None:
            own_bytes = lane.held_bytes
        stuck = [lane for lane in self.stuck_lanes() if lane.holder is not session]
        keepers = [session, *(lane.holder for lane in stuck)]
        others = (one.ephemeral_bytes for one in self.sessions.values() if one.is_admitted and one not in keepers)
        kept_bytes = own_bytes + sum(one.held_bytes for one in stuck)
        return self.persistent_bytes + kept_bytes + max(others, default=0) <= self.limits.capacity_bytes

    # Charges

    def excess_bytes(self, session: Session, persistent_bytes: int, ephemeral_bytes: int) -> int:
        """The part of these sizes that the session's job was not charged for; 0 or less if it was charged for all."""
        reserve_bytes = self.limits.lane_reserve_bytes
        charged = charge_bytes(session.charged_persistent_bytes, session.charged_ephemeral_bytes, reserve_bytes)
        return charge_bytes(persistent_bytes, ephemeral_bytes, reserve_bytes) - charged

    def note_charge(self, session: Session) -> None:
        """The sizes of the session, its charge or the reserve have changed."""
        if self.excess_bytes(session, session.persistent_bytes, session.ephemeral_bytes) > 0:
            self.over_charge[session.id] = session
        elif self.over_charge.pop(session.id, None) is not None:
            session.blocking_ns = None

    def claimants(self) -> Iterator[Session]:
        """Placed sessions that need bytes: arrivals within their charge, and waiters of lanes that are not stuck."""
        for session in self.sessions.values():
            is_arrival = not session.is_admitted and not self.is_drained and session.id not in self.over_charge
            is_waiter = session.is_queued and session.lane is not None and not session.lane.is_stuck
            if session.is_placed and (is_arrival or is_waiter):
                yield session

    def is_awaited(self, session: Session) -> bool:
        """Whether another session waits for bytes for which it was charged. Until it has them, no excess is allowed."""
        return any(
            one is not session
            and one.id not in self.over_charge
            and (one.lane is None or one.lane.held_bytes < one.ephemeral_bytes)
            for one in self.claimants()
        )

    # Choices

    def find_lane(self, session: Session) -> Lane | None:
        """The lane of the domain that the session should join: the smallest that fits, or that can grow to fit."""
        peers = [lane for lane in self.domains.get(session.domain, {}).values() if lane.is_joinable]
        fitting = [lane for lane in peers if lane.held_bytes >= session.ephemeral_bytes]
        if fitting:
            return min(fitting, key=lambda lane: (lane.held_bytes, len(lane.sessions), lane.id))
        room_bytes = self.free_bytes
        growing = [lane for lane in peers if room_bytes + lane.held_bytes >= session.ephemeral_bytes]
        return min(growing, key=lambda lane: (lane.held_bytes, lane.id), default=None)

    def parked_lane(self, domain: Domain) -> Lane | None:
        """The parked lane of the domain, or None. A domain needs only one."""
        parked = (lane for lane in self.domains.get(domain, {}).values() if lane.state is LaneState.PARKED)
        return next(parked, None)

    def has_lane_to_spare(self) -> bool:
        """Whether one more lane may be open. Pinned lanes do not count, because nobody shares them."""
        return sum(1 for lane in self.open_lanes.values() if not lane.is_pinned) < self.limits.lanes_max

    def victims(self) -> list[Lane]:
        """Open lanes that can be released, in order of preference.

        Idle before busy, lanes without waiters before others, small before large.
        """
        return sorted(
            (lane for lane in self.open_lanes.values() if lane.state is LaneState.OPEN and not lane.is_stuck),
            key=lambda lane: (lane.holder is not None, lane.first_waiter() is not None, lane.held_bytes, lane.id),
        )
