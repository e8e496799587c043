"""Lanes and the device that holds them: sums, best fit, and which lanes give their bytes back.

A lane is open (holds bytes) or parked (holds none). Bytes count from the moment they are asked for until their release
is confirmed. Nothing here decides whose turn it is (core.claims) or changes a session.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from nodedaemon.core.fairness import SCALE_BITS, ServiceBook, ServiceClock
from nodedaemon.core.ordering import Breadth, Ordering
from nodedaemon.core.sessions import Place, Session, SessionState
from nodedaemon.core.types import DeviceId, DeviceLimits, Domain, Epoch, JobClass, LaneId, SessionId
from nodedaemon.core.waiting import WaitList


class LaneState(StrEnum):
    PARKED = "parked"  # holds no bytes
    OPENING = "opening"  # bytes counted, memory not there yet
    OPEN = "open"
    RELEASING = "releasing"  # bytes counted until they are seen free


#: The table is the truth, as for sessions (docs/sessions.md).
LANE_TRANSITIONS: dict[LaneState, frozenset[LaneState]] = {
    LaneState.PARKED: frozenset({LaneState.OPENING}),
    LaneState.OPENING: frozenset({LaneState.OPEN, LaneState.RELEASING, LaneState.PARKED}),
    LaneState.OPEN: frozenset({LaneState.RELEASING}),
    LaneState.RELEASING: frozenset({LaneState.PARKED}),
}


@dataclass(slots=True, eq=False)
class Lane:
    """A slice of device memory in which iterations run one at a time; it belongs to one domain for its whole life."""

    id: LaneId
    device: DeviceId
    domain: Domain
    state: LaneState = LaneState.PARKED
    held_bytes: int = 0
    epoch: Epoch = field(default=Epoch(0))
    sessions: dict[SessionId, Session] = field(default_factory=dict)
    holder: Session | None = None
    is_pinned: bool = False
    opened_ns: int = 0
    returned_ns: int = 0
    last_class: JobClass = JobClass.NORMAL
    retry_ns: int = 0
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
        """The size that fits every session of the lane."""
        sizes = self._sizes
        while sizes:
            session = self.sessions.get(sizes[0][1])
            if session is not None and session.ephemeral_bytes == -sizes[0][0]:
                return -sizes[0][0]
            heapq.heappop(sizes)
        return 0

    def add_waiter(self, place: Place, session: Session) -> None:
        heapq.heappush(self.waiters, (place, session.id))

    def first_waiter(self) -> tuple[Place, Session] | None:
        """The waiter that goes first here, or None; entries of those who left or moved are dropped on the way."""
        heap = self.waiters
        while heap:
            place, session_id = heap[0]
            session = self.sessions.get(session_id)
            if (
                session is not None
                and session.state is SessionState.WAITING
                and session.wait_order == place[3]
                and not session.is_stopped
            ):
                return place, session
            heapq.heappop(heap)
        return None

    @property
    def is_idle(self) -> bool:
        return self.state is LaneState.OPEN and self.holder is None

    @property
    def is_stuck(self) -> bool:
        """The holder reaches no boundary: stopped, reported as hung, or the lane is its own for good."""
        holder = self.holder
        return self.is_pinned or (holder is not None and (holder.is_stopped or holder.is_reported))


class Device:
    """One device with its lanes, sessions and sums; `free_bytes` never goes below zero."""

    def __init__(self, device: DeviceId, limits: DeviceLimits, ordering: Ordering, now_ns: int) -> None:
        self.id = device
        self.limits = limits
        self.ordering = ordering
        self.is_drained = False
        self.lost_reason: str | None = None
        self.sessions: dict[SessionId, Session] = {}
        self.lanes: dict[LaneId, Lane] = {}
        self.open_lanes: dict[LaneId, Lane] = {}
        self.domains: dict[Domain, dict[LaneId, Lane]] = {}
        self.arrivals: dict[SessionId, Session] = {}
        self.persistent_bytes = 0
        self.held_bytes = 0
        self.releasing_bytes = 0
        self.epoch = 0
        self.wait_order = 0
        self.clock = ServiceClock(now_ns, limits.service_half_life_ns)
        self.book = ServiceBook()
        self.waits: dict[JobClass, WaitList] = {job_class: WaitList() for job_class in JobClass}
        self.running: dict[JobClass, int] = dict.fromkeys(JobClass, 0)
        self.wake_ns: int | None = None
        self._parked: list[tuple[Place, LaneId]] = []
        self._sizes: list[tuple[int, SessionId]] = []

    @property
    def free_bytes(self) -> int:
        return self.limits.capacity_bytes - self.persistent_bytes - self.held_bytes

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
        """Credit what the session attained since `start_service`; without one before, nothing happens."""
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

    def note_running_service(self) -> None:
        """Tell the book what the holders have attained by now, before somebody is lifted to the floor."""
        for lane in self.open_lanes.values():
            if lane.holder is not None and lane.holder.is_served:
                view = lane.holder.view(self.clock.plain, self.clock.grown)
                self.book.update(lane.holder.id, view.virtual_service)

    def rescale(self, bits: int) -> None:
        """Follow the service clock where it shifts its numbers back."""
        for session in self.sessions.values():
            session.virtual >>= bits
            session.granted_grown >>= bits
        self.book.shift(bits)

    def wait_class(self, session: Session) -> JobClass:
        """Those whom the session may overtake only so often: its class where classes matter, else everybody."""
        return session.job_class if self.ordering.breadth is Breadth.CLASS else JobClass.NORMAL

    def waits_of(self, session: Session) -> WaitList:
        return self.waits[self.wait_class(session)]

    # Lanes

    def add_lane(self, lane: Lane) -> None:
        self.lanes[lane.id] = lane
        self.domains.setdefault(lane.domain, {})[lane.id] = lane

    def drop_lane(self, lane: Lane) -> None:
        del self.lanes[lane.id]
        mates = self.domains[lane.domain]
        del mates[lane.id]
        if not mates:
            del self.domains[lane.domain]

    def hold(self, lane: Lane, size_bytes: int) -> None:
        """Count a lane's bytes: from now on it is opening."""
        lane.step(LaneState.OPENING)
        lane.held_bytes, lane.epoch = size_bytes, self.next_epoch()
        self.held_bytes += size_bytes
        self.open_lanes[lane.id] = lane

    def start_release(self, lane: Lane) -> None:
        lane.step(LaneState.RELEASING)
        lane.epoch = self.next_epoch()
        self.releasing_bytes += lane.held_bytes

    def end_release(self, lane: Lane) -> None:
        """The lane's bytes are seen free, or were never there."""
        if lane.state is LaneState.RELEASING:
            self.releasing_bytes -= lane.held_bytes
        self.held_bytes -= lane.held_bytes
        lane.step(LaneState.PARKED)
        lane.held_bytes = 0
        del self.open_lanes[lane.id]
        self.note_parked(lane)

    # Order of the lanes that hold no bytes

    def note_parked(self, lane: Lane) -> None:
        """A parked lane has a new first waiter, or a lane with waiters was parked."""
        first = lane.first_waiter()
        if first is not None:
            heapq.heappush(self._parked, (first[0], lane.id))

    def forget_waiters(self) -> None:
        """Before all waiters are put in order anew."""
        self._parked.clear()
        self.waits = {job_class: WaitList() for job_class in JobClass}

    def first_parked(self) -> tuple[Place, Lane] | None:
        """The parked lane whose first waiter goes before those of all other parked lanes."""
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
        """The largest E of the sessions that are here or about to be."""
        sizes = self._sizes
        while sizes:
            session = self.sessions.get(sizes[0][1])
            if session is not None and session.ephemeral_bytes == -sizes[0][0]:
                return -sizes[0][0]
            heapq.heappop(sizes)
        return 0

    @property
    def pinned_bytes(self) -> int:
        return sum(lane.held_bytes for lane in self.open_lanes.values() if lane.is_stuck)

    def can_always_run(self, more_persistent_bytes: int, ephemeral_bytes: int = 0) -> bool:
        """Does sum P + largest E <= C still hold with that much more? Then everybody here can make progress."""
        largest = max(self.ephemeral_bytes_max, ephemeral_bytes)
        spoken_for = self.persistent_bytes + more_persistent_bytes + self.pinned_bytes
        return spoken_for + largest <= self.limits.capacity_bytes

    # Choices

    def find_lane(self, session: Session) -> Lane | None:
        """The lane of the session's domain to join: the smallest that fits, else the smallest that can grow to fit."""
        mates = [lane for lane in self.domains.get(session.domain, {}).values() if self._is_joinable(lane)]
        fitting = [lane for lane in mates if lane.held_bytes >= session.ephemeral_bytes]
        if fitting:
            return min(fitting, key=lambda lane: (lane.held_bytes, len(lane.sessions), lane.id))
        room_bytes = self.free_bytes
        growing = [lane for lane in mates if room_bytes + lane.held_bytes >= session.ephemeral_bytes]
        return min(growing, key=lambda lane: (lane.held_bytes, lane.id), default=None)

    @staticmethod
    def _is_joinable(lane: Lane) -> bool:
        return lane.state in (LaneState.OPEN, LaneState.OPENING) and not lane.is_stuck

    def parked_lane(self, domain: Domain) -> Lane | None:
        """A parked lane of the domain, if there is one: a domain needs no second."""
        parked = (lane for lane in self.domains.get(domain, {}).values() if lane.state is LaneState.PARKED)
        return next(parked, None)

    def has_lane_to_spare(self) -> bool:
        """May one more lane be open? Lanes that are pinned to a job are not counted: nobody shares them."""
        return sum(1 for lane in self.open_lanes.values() if not lane.is_pinned) < self.limits.lanes_max

    def victims(self) -> Iterator[Lane]:
        """Open lanes that could give their bytes back, in the order in which they are asked.

        Nobody waiting first, smallest first, idle before busy.
        """
        lanes = [lane for lane in self.open_lanes.values() if lane.state is LaneState.OPEN and not lane.is_stuck]
        lanes.sort(
            key=lambda lane: (lane.holder is not None, lane.first_waiter() is not None, lane.held_bytes, lane.id)
        )
        return iter(lanes)
