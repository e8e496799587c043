"""One round on a device: which session gets bytes, which gets a grant, and whose grant ends.

Theory of operation
-------------------
A claim is a session that needs something: an arrival needs its persistent bytes, a waiter needs a lane. A round serves
claims in this order: arrivals by age, ungated waiters, waiters that were overtaken too often, all others by policy.

- A waiter whose lane is free and large enough is granted.
- A waiter whose lane holds no bytes, or too few, claims bytes: free ones, or those of lanes behind it in the order.
  Idle lanes release at once. Holders of busy lanes are revoked and release at their next boundary.
- While bytes are on their way to a claim, nobody behind it starts (`Outcome.BLOCKING`). So the first claim waits at
  most for the iterations under way.
- Under equal progress, a waiter stands back if it is ahead of a session in another lane.

Then the round revokes holders that the policy would not grant again, limits how many iterations the others may start
while another session waits, releases lanes that are too large, and gives the next waiter its own lane if there is room.

A round visits only the open lanes, which are few, and the first waiter of each. Unless a lane is stuck, its cost does
not grow with the number of sessions. docs/adr/0003-memory-rule.md and docs/adr/0005-bounded-overtaking.md give the
reasons.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum

from nodedaemon.core.commands import (
    AdmitSession,
    CloseLane,
    Command,
    EndSession,
    Grant,
    LimitGrant,
    OpenLane,
    ReleaseLane,
    Revoke,
    WarnSession,
)
from nodedaemon.core.ordering import Breadth
from nodedaemon.core.round.placement import Placement
from nodedaemon.core.round.precedence import Precedence
from nodedaemon.core.state.lanes import Device, Lane, LaneState
from nodedaemon.core.state.sessions import Place, Session, SessionState
from nodedaemon.core.types import Epoch, FaultAction, JobClass, LaneId, SessionId


class Outcome(Enum):
    """The result of serving one waiter."""

    GRANTED = "it runs"
    COMING = "its lane is busy or being opened"
    BLOCKING = "bytes are on their way to it; nobody behind it may start"
    YIELDING = "its lane is free, but a session of another lane has to catch up first"
    SKIPPED = "it cannot be served now, and takes nothing from those behind it"


class Round:
    """One pass over the claims of a device. Each event gets a new round; nothing is kept between rounds."""

    def __init__(self, device: Device, now_ns: int, new_lane: Callable[[], LaneId]) -> None:
        self.device = device
        self.now_ns = now_ns
        self.precedence = Precedence(device, now_ns)
        self.commands: list[Command] = []
        self.placement = Placement(device, self.commands, new_lane)
        #: Times at which skipped claims may be tried again.
        self.retry_ns: list[int] = []
        self.is_blocked = False
        #: The first waiter of each lane, in order, after the grants of this round.
        self.first_waiters: list[Session] = []
        #: Waiters that were served, and waiters that cannot be served now. Nobody stands back for the latter.
        self._served: list[Session] = []
        self._skipped: set[SessionId] = set()
        #: Classes whose oldest waiter cannot be served now, so that overtaking it does not delay it.
        self._excused: set[JobClass] = set()

    def serve(self) -> None:
        """Serve arrivals, then waiters, then holders, then lanes of the wrong size."""
        if self.device.lost_reason is not None:
            return
        self.is_blocked = self._serve_arrivals() or self._serve_waiters()
        self.first_waiters = [one for one in self.candidates(counts_promises=False) if not self._is_stuck(one)]
        self._check_leases()
        self._fit_lanes()
        if not self.is_blocked:
            self._spread()

    # Arrivals

    def _serve_arrivals(self) -> bool:
        device = self.device
        if device.is_drained:
            return False
        passed_over: set[SessionId] = set()
        while True:
            session = next((one for one in device.arrivals.values() if one.id not in passed_over), None)
            if session is None:
                return False
            # This fails only on an over-committed device. There, waiting for bytes would block all others in vain.
            is_possible = device.can_always_run(session.persistent_bytes, session.ephemeral_bytes)
            if not is_possible or (session.id in device.over_charge and device.is_awaited(session)):
                passed_over.add(session.id)
                continue
            lack_bytes = session.persistent_bytes - device.free_bytes
            if lack_bytes > 0:
                self._reclaim(self._choose(lack_bytes - device.releasing_bytes, 0, None), None)
                return True
            self._admit(session)

    def _admit(self, session: Session) -> None:
        device = self.device
        del device.arrivals[session.id]
        device.persistent_bytes += session.persistent_bytes
        device.note_size(session)
        self.commands.append(AdmitSession(session.id, session.persistent_bytes))
        if session.ephemeral_bytes == 0:
            session.step(SessionState.UNGATED, self.now_ns)
            return
        session.step(SessionState.IDLE, self.now_ns)
        if session.ephemeral_bytes <= device.free_bytes and device.has_lane_to_spare():
            lane = self.placement.add_lane(session.domain)
            self.placement.bind(session, lane)
            self._open(lane)
        else:
            self.placement.place(session)

    # Waiters

    def _serve_waiters(self) -> bool:
        breadth = self.device.ordering.breadth
        if breadth is Breadth.ONE and any(self.device.running.values()):
            return False
        for session in self.candidates(counts_promises=True):
            outcome = self._serve_waiter(session)
            if outcome is Outcome.BLOCKING:
                return True
            if outcome is Outcome.SKIPPED:
                self._skipped.add(session.id)
                if self.precedence.is_oldest(session):
                    self._excused.add(self.device.wait_class(session))
            else:
                self._served.append(session)
            if session.is_ungated and outcome is Outcome.GRANTED:
                return self._serve_waiters()  # the others have moved to other lanes, and it does not use up their turn
            if breadth is Breadth.ONE and outcome is not Outcome.SKIPPED:
                return False
        return False

    @staticmethod
    def _is_stuck(session: Session) -> bool:
        return session.lane is not None and session.lane.is_stuck

    def candidates(self, *, counts_promises: bool) -> list[Session]:
        """The first waiter of each open lane and of the parked lanes, in the order of service.

        With `counts_promises`, for new grants, iterations that holders may still start count as overtaking.
        """
        device = self.device
        if not any(len(waits) for waits in device.waits.values()):
            return []
        top = self.precedence.top_class() if device.ordering.breadth is Breadth.CLASS else None
        found: dict[LaneId, tuple[Place, Session]] = {}
        for lane in device.open_lanes.values():
            first = lane.first_waiter()
            if first is not None:
                found[lane.id] = first
        parked = device.first_parked()
        if parked is not None:
            first = parked[1].first_waiter()
            assert first is not None
            found[parked[1].id] = first
        for job_class in JobClass if top is None else (top,):
            oldest = device.waits[job_class].oldest
            if oldest is not None and self.precedence.overtakes_left(job_class, counts_promises=counts_promises) <= 0:
                session = device.sessions[oldest]
                assert session.lane is not None
                if session.lane.id not in found or found[session.lane.id][0][0] > 1:
                    found[session.lane.id] = ((1, session.place[1], (), session.wait_order), session)
        served = [entry for entry in found.values() if top is None or entry[1].job_class is top or entry[1].is_ungated]
        return [session for _, session in sorted(served, key=lambda entry: entry[0])]

    def _serve_waiter(self, session: Session) -> Outcome:
        lane = session.lane
        assert lane is not None
        if session.is_ungated and not self.device.can_pin(session):
            self._gate_again(session)
        if lane.is_stuck:
            return Outcome.SKIPPED  # a named successor behind a holder that reaches no boundary; others continue
        if lane.state in (LaneState.OPENING, LaneState.RELEASING) or lane.holder is not None:
            return Outcome.COMING
        if self._must_yield(session):
            return Outcome.YIELDING
        if lane.state is LaneState.PARKED or lane.held_bytes < session.ephemeral_bytes:
            return self._claim(lane, session)
        self.grant(lane, session, None)
        return Outcome.GRANTED

    def _gate_again(self, session: Session) -> None:
        """Gate the session again: other sessions need the memory that it would keep, so it takes turns like them."""
        waits = self.device.waits_of(session)
        waits.remove(session.id, is_granted=False)
        session.is_ungated = False
        self.device.enqueue(session, self.now_ns)

    def _must_yield(self, session: Session) -> bool:
        """Whether a turn now would overtake a waiter too often, or widen the lead over a session that is behind."""
        if session.is_ungated or self.precedence.is_overdue(session):
            return False
        job_class = self.device.wait_class(session)
        is_oldest = self.precedence.is_oldest(session)
        if not is_oldest and job_class not in self._excused and self.precedence.overtakes_left(job_class) <= 0:
            return True
        return self.precedence.is_ahead(session, [*self._served, *self.precedence.holders()])

    def grant(self, lane: Lane, session: Session, handed_epoch: Epoch | None) -> None:
        """Let the session run. With `handed_epoch` its predecessor has started it already."""
        device = self.device
        if not session.is_stopped:
            device.waits_of(session).remove(session.id, is_granted=True)
        session.waited_ns += self.now_ns - session.wanted_ns
        session.step(SessionState.RUNNING, self.now_ns)
        session.epoch = device.next_epoch() if handed_epoch is None else handed_epoch
        session.granted_ns, session.granted_bytes = self.now_ns, session.ephemeral_bytes
        session.iteration_limit, session.is_limited_later, session.is_reported = None, False, False
        lane.holder, lane.last_class = session, session.job_class
        limit = None
        if session.is_ungated:
            self.pin(lane, session)
        elif not session.is_stopped:
            device.start_service(session)
        if not session.is_ungated and len(device.waits_of(session)):
            limit = max(1, self.precedence.allotment(device.wait_class(session)))
            session.iteration_limit = limit - 1
        if handed_epoch is None:
            self.commands.append(Grant(session.id, lane.id, session.epoch, limit))
        elif limit is not None:
            session.is_limited_later = True
            self.commands.append(LimitGrant(session.id, handed_epoch, limit - 1))

    def pin(self, lane: Lane, session: Session) -> None:
        """Give the lane to an ungated session until it leaves. The other sessions move to other lanes."""
        self.device.stop_service(session)
        lane.is_pinned = True
        self.placement.clear(lane, session)

    # Bytes

    def _open(self, lane: Lane) -> None:
        device = self.device
        device.hold(lane, lane.target_bytes)
        self.commands.append(OpenLane(lane.id, device.id, lane.domain, lane.held_bytes, lane.epoch))

    def _claim(self, lane: Lane, session: Session) -> Outcome:
        """Find bytes for the lane of `session`, which is parked or too small."""
        device = self.device
        if lane.retry_ns > self.now_ns:
            self.retry_ns.append(lane.retry_ns)
            return Outcome.SKIPPED
        needed_bytes = lane.target_bytes
        reachable_bytes = device.limits.capacity_bytes - device.persistent_bytes - device.pinned_bytes
        if session.ephemeral_bytes <= reachable_bytes < needed_bytes:
            # This happens only if a lane is stuck. A larger session of this lane must wait for that; this one need not.
            own = self.placement.add_lane(session.domain)
            self.placement.bind(session, own)
            return self._claim(own, session)
        own_bytes = lane.held_bytes
        has_room = bool(own_bytes) or device.has_lane_to_spare()
        if has_room and needed_bytes <= device.free_bytes + own_bytes:
            if own_bytes:
                self.release(lane)
                return Outcome.BLOCKING
            self._open(lane)
            return Outcome.COMING
        joinable = device.find_lane(session)
        if joinable is not None and joinable is not lane and joinable.held_bytes >= session.ephemeral_bytes:
            if joinable.held_bytes >= needed_bytes:
                self.placement.merge(lane, joinable)
            else:
                self.placement.bind(session, joinable)
            self.drop_if_empty(lane)
            return self._serve_waiter(session)
        lack_bytes = needed_bytes - own_bytes - device.free_bytes - device.releasing_bytes
        is_room_coming = has_room or device.releasing_bytes > 0
        chosen = self._choose(lack_bytes, 0 if is_room_coming else 1, session)
        if chosen is None:
            return Outcome.SKIPPED
        if own_bytes:
            self.release(lane)
        self._reclaim(chosen, lane)
        return Outcome.BLOCKING

    def _choose(self, lack_bytes: int, count: int, claimant: Session | None) -> list[Lane] | None:
        """Lanes that together give `lack_bytes`, at least `count` of them; None if there are not enough.

        An arrival (no claimant) may take any lane. A waiter may take only lanes behind it in the order, and lanes of
        other domains only after their quantum.
        """
        chosen: list[Lane] = []
        for lane in self.device.victims():
            if sum(one.held_bytes for one in chosen) >= lack_bytes and len(chosen) >= count:
                break
            if claimant is None or (lane is not claimant.lane and self._may_reclaim(lane, claimant)):
                chosen.append(lane)
        for lane in list(chosen):
            rest_bytes = sum(one.held_bytes for one in chosen) - lane.held_bytes
            if rest_bytes >= lack_bytes and len(chosen) > count:
                chosen.remove(lane)
        enough = sum(one.held_bytes for one in chosen) >= lack_bytes and len(chosen) >= count
        return chosen if enough else None

    def _may_reclaim(self, lane: Lane, claimant: Session) -> bool:
        if claimant.is_ungated or self.precedence.precedes_as_overdue(claimant, lane.last_class):
            return True
        if lane.holder is not None and not self.precedence.goes_before(claimant, lane.holder):
            return False
        first = lane.first_waiter()
        if lane.holder is None and first is not None and first[1] in self._served:
            # That waiter goes before the claimant and only stands back for now: the bytes would move back and forth.
            return False
        protected_ns = self.precedence.protected_until_ns(lane, claimant)
        if protected_ns > self.now_ns:
            self.retry_ns.append(protected_ns)
            return False
        return True

    def _reclaim(self, chosen: list[Lane] | None, claimant: Lane | None) -> None:
        """Release the chosen lanes: idle ones now, busy ones at their next boundary."""
        for lane in chosen or ():
            if lane.holder is not None:
                self.revoke(lane.holder, None)
                continue
            target = self.placement.merge_target(lane, claimant, chosen or [])
            if target is not None:
                self.placement.merge(lane, target)
            self.release(lane)

    def warn_or_end(self, session: Session, action: FaultAction, reason: str) -> None:
        """Warn the session about its fault or end it, as the limits of the device say."""
        command = EndSession if action is FaultAction.KILL else WarnSession
        self.commands.append(command(session.id, reason))

    def release(self, lane: Lane) -> None:
        """Start to release the lane's bytes."""
        self.device.start_release(lane)
        self.commands.append(ReleaseLane(lane.id, lane.epoch))

    def drop_if_empty(self, lane: Lane) -> None:
        """Close the lane if it holds no bytes and no session."""
        if not lane.sessions and lane.state is LaneState.PARKED:
            self.device.drop_lane(lane)
            self.commands.append(CloseLane(lane.id))

    def empty(self, lane: Lane) -> None:
        """Call this after a session has left: if the lane is empty, close it, or release it if it is being opened."""
        if not lane.sessions and lane.state is LaneState.OPENING:
            self.release(lane)
        else:
            self.drop_if_empty(lane)

    # Holders

    def _check_leases(self) -> None:
        """End the leases that the policy would not renew, and limit those that overtake a waiter."""
        device = self.device
        breadth = device.ordering.breadth
        top = self.precedence.top_class()
        best = self.precedence.best_holder() if breadth is Breadth.ONE and sum(device.running.values()) > 1 else None
        for lane in list(device.open_lanes.values()):
            holder = lane.holder
            if holder is None or lane.is_stuck:
                continue
            is_preceded = breadth is Breadth.CLASS and holder.job_class > top
            if is_preceded or (best is not None and holder is not best):
                self.revoke(holder, None)
            else:
                self._check_lease(lane, holder)

    def _check_lease(self, lane: Lane, holder: Session) -> None:
        rival = self.rival(lane)
        if rival is not None and self.precedence.goes_before(rival, holder):
            self.revoke(holder, rival if self._can_succeed(rival, lane) else None)
        elif self.now_ns >= self.check_in_ns(holder) or self._is_spent_elsewhere(lane, holder):
            self.revoke(holder, None)
        elif (
            holder.state is SessionState.RUNNING
            and holder.iteration_limit is None
            and len(self.device.waits_of(holder))
        ):
            left = self.precedence.allotment(self.device.wait_class(holder))
            if left <= 0:
                self.revoke(holder, None)
                return
            holder.iteration_limit, holder.is_limited_later = left, True
            assert holder.epoch is not None
            self.commands.append(LimitGrant(holder.id, holder.epoch, left))

    def _is_spent_elsewhere(self, lane: Lane, holder: Session) -> bool:
        """Under equal progress: whether a session of another lane has to catch up with the holder."""
        return self.device.ordering.is_timed and any(
            self.precedence.is_spent(self.precedence.lease_wall_ns(holder, one)) for one in self.rivals_elsewhere(lane)
        )

    def check_in_ns(self, holder: Session) -> float:
        """When the holder has to return its grant, even if the policy prefers it to all waiters.

        Otherwise nobody would notice that it hangs. If it does not hang, it may be granted again at once.
        """
        if not any(len(waits) for waits in self.device.waits.values()):
            return math.inf
        return holder.granted_ns + self.device.limits.hang_timeout_ns

    def _can_succeed(self, waiter: Session, lane: Lane) -> bool:
        if self.is_blocked or waiter.is_ungated or waiter.lane is not lane:
            return False
        if lane.held_bytes < waiter.ephemeral_bytes or self.precedence.is_ahead(waiter, self.rivals_elsewhere(lane)):
            return False
        # The new successor takes over the promise made to an earlier one.
        promised = lane.holder is not None and lane.holder.successor is not None
        is_oldest = self.precedence.is_oldest(waiter)
        return is_oldest or self.precedence.overtakes_left(self.device.wait_class(waiter)) + promised > 0

    def rivals_elsewhere(self, lane: Lane) -> list[Session]:
        """Sessions of other lanes that run, or wait and can be served. Equal progress is measured against them."""
        waiters = [one for one in self.first_waiters if one.lane is not lane and one.id not in self._skipped]
        return waiters + [one for one in self.precedence.holders() if one.lane is not lane]

    def rival(self, lane: Lane) -> Session | None:
        """The waiter that would run if the holder of this lane were at a boundary now."""
        if self.device.ordering.breadth is Breadth.ONE:
            return self.first_waiters[0] if self.first_waiters else None
        return next((one for one in self.first_waiters if one.lane is lane), None)

    def revoke(self, holder: Session, successor: Session | None) -> None:
        """Revoke the holder's grant; a second time only if the successor changes."""
        successor_id = None if successor is None else successor.id
        if holder.state is SessionState.REVOKED and holder.successor == successor_id:
            return
        if holder.state is SessionState.RUNNING:
            holder.step(SessionState.REVOKED, self.now_ns)
            holder.revoked_ns, holder.is_reported = self.now_ns, False
        holder.successor = successor_id
        epoch = None
        if successor_id is not None:
            epoch = self.device.next_epoch()
            holder.offers[epoch] = successor_id
        assert holder.epoch is not None
        self.commands.append(Revoke(holder.id, holder.epoch, successor_id, epoch))

    # Sizes

    def _fit_lanes(self) -> None:
        """Release idle lanes that are unused or larger than their sessions need."""
        for lane in list(self.device.open_lanes.values()):
            if lane.is_idle and not lane.is_stuck and lane.held_bytes > lane.target_bytes:
                self.release(lane)

    def _spread(self) -> None:
        """If there is room, give the next waiter of a busy lane a lane of its own."""
        device = self.device
        if device.ordering.breadth is Breadth.ONE or device.is_drained:
            return
        if device.free_bytes <= 0 or device.first_parked() is not None:
            return
        for session in self.first_waiters:
            lane = session.lane
            assert lane is not None
            # A named successor may already be running in this lane, so it stays.
            is_free_to_go = lane.holder is not None and session.id not in lane.holder.offers.values()
            if not is_free_to_go or not device.has_lane_to_spare() or session.ephemeral_bytes > device.free_bytes:
                continue
            own = self.placement.add_lane(session.domain)
            self.placement.bind(session, own)
            self._open(own)
