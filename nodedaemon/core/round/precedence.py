"""Which session goes before which on a device at one moment. These functions only read; `claims` acts on them.

Three things precede the policy's order: a session without a gate, a waiter that was overtaken `MaxOvertakes` times, and
a higher class under `priority`. Then the policy decides, through the lease that it would give the holder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nodedaemon.core.ordering import Breadth
from nodedaemon.core.state.lanes import Device, Lane
from nodedaemon.core.state.sessions import Session
from nodedaemon.core.types import MICROSECOND_NS, JobClass

#: A lease with less time left ends now. This avoids wake-ups for a few nanoseconds.
LEASE_GRAIN_NS = 10 * MICROSECOND_NS


class Precedence:
    """The order of the sessions of `device` at `now_ns`."""

    def __init__(self, device: Device, now_ns: int) -> None:
        self.device = device
        self.now_ns = now_ns

    def holders(self) -> Iterator[Session]:
        """Sessions that hold a grant and attain service."""
        return (lane.holder for lane in self.device.open_lanes.values() if lane.holder and lane.holder.is_served)

    def top_class(self) -> JobClass:
        """The best class that waits or runs."""
        for job_class in JobClass:
            if self.device.running[job_class] or len(self.device.waits[job_class]):
                return job_class
        return JobClass.BEST_EFFORT

    # Overtaking

    def overtakes_left(self, job_class: JobClass, *, counts_promises: bool = True) -> int:
        """Iterations of this class that may still start before its oldest waiter, less those promised to holders."""
        device = self.device
        left = device.limits.overtakes_max - device.waits[job_class].oldest_count
        if not counts_promises:
            return left
        return left - sum(
            (lane.holder.iteration_limit or 0) + (lane.holder.successor is not None)
            for lane in device.open_lanes.values()
            if lane.holder is not None and device.wait_class(lane.holder) is job_class
        )

    def allotment(self, job_class: JobClass) -> int:
        """The part of the remaining overtakes that one more grant of this class may use."""
        # Lanes that run at the same time overtake the same waiters, so they divide the remainder.
        left = self.overtakes_left(job_class)
        return min(left, max(1, left // max(1, len(self.device.open_lanes))))

    def is_oldest(self, session: Session) -> bool:
        """Whether it has waited the longest in its class."""
        return self.device.waits_of(session).oldest == session.id

    def is_overdue(self, session: Session) -> bool:
        """Whether it was overtaken as often as is allowed."""
        waits = self.device.waits_of(session)
        return waits.oldest == session.id and waits.oldest_count >= self.device.limits.overtakes_max

    def precedes_as_overdue(self, waiter: Session, job_class: JobClass) -> bool:
        """Whether the waiter goes before sessions of `job_class` because it is overdue."""
        is_peer = waiter.job_class <= job_class or self.device.ordering.breadth is not Breadth.CLASS
        return is_peer and self.is_overdue(waiter)

    # Leases

    def best_holder(self) -> Session:
        """The holder that the policy puts first. There must be one."""
        holders = [lane.holder for lane in self.device.open_lanes.values() if lane.holder is not None]
        clock, ordering = self.device.clock, self.device.ordering
        return min(
            holders,
            key=lambda one: (ordering.key(one.view(clock.plain, clock.grown), self.now_ns), one.arrival_order),
        )

    def goes_before(self, waiter: Session, holder: Session) -> bool:
        """Whether the waiter, not the holder, would get the next grant if both were at a boundary now."""
        if waiter.is_ungated or self.precedes_as_overdue(waiter, holder.job_class):
            return True
        return self.is_spent(self.lease_wall_ns(holder, waiter))

    def is_ahead(self, session: Session, others: Iterable[Session]) -> bool:
        """Under equal progress: whether the session is too far ahead of one of the others."""
        if not self.device.ordering.is_timed:
            return False
        for other in others:
            service = None if other is session else self._lease_service(session, other)
            if service is not None and service < 0:
                return True
        return False

    @staticmethod
    def is_spent(wall_ns: int | None) -> bool:
        """Whether a lease with this much time left ends now."""
        return wall_ns is not None and wall_ns <= LEASE_GRAIN_NS

    def lease_wall_ns(self, holder: Session, rival: Session) -> int | None:
        """Time until the rival goes before the holder: 0 means now, None means never unless something else changes."""
        service = self._lease_service(holder, rival)
        if service is None:
            return None
        if service >= 0 and rival.is_served:
            # Both attain service: the holder runs ahead only if the rival has the larger weight.
            if rival.weight <= holder.weight:
                return None
            service = -(-service * rival.weight // (rival.weight - holder.weight))
        return self.device.clock.wall_ns(max(0, service), is_grown=self.device.ordering.is_timed)

    def _lease_service(self, holder: Session, waiter: Session) -> int | None:
        plain, grown = self.device.clock.plain, self.device.clock.grown
        return self.device.ordering.lease_service(holder.view(plain, grown), waiter.view(plain, grown), self.now_ns)

    def protected_until_ns(self, lane: Lane, claimant: Session) -> int:
        """Until when the quantum keeps the lane for its domain. A higher class and the same domain need not wait."""
        if lane.domain == claimant.domain or claimant.job_class < lane.last_class:
            return self.now_ns
        quantum_end_ns = lane.opened_ns + self.device.limits.domain_quantum_ns
        if lane.holder is not None or lane.first_waiter() is not None:
            return quantum_end_ns
        return min(quantum_end_ns, lane.returned_ns + self.device.limits.idle_release_ns)
