"""Attained service, weights and decay.

Service is wall time divided by the number of busy lanes, so the service of all sessions of a device adds up to its busy
time. Decay does not change old numbers. Instead new increments grow, which keeps the order at no cost per session. All
numbers are fixed point, so equal inputs give equal decisions on every machine.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nodedaemon.core.types import SessionId

#: Fraction bits of service numbers: a nanosecond shared by 16 lanes still counts.
SCALE_BITS = 16
ONE_NS = 1 << SCALE_BITS

#: Increments double once per half-life. After this many doublings all numbers are shifted back to stay small.
REBASE_DOUBLINGS = 64


@dataclass(slots=True)
class ServiceClock:
    """Integrates service over time for one device: the service of a lane that is always busy."""

    now_ns: int
    start_ns: int
    half_life_ns: int | None = None
    busy_count: int = 0
    plain: int = 0
    grown: int = 0

    def advance(self, now_ns: int) -> None:
        """Advance both integrals to `now_ns`. Time that runs backwards counts as no time."""
        if now_ns <= self.now_ns:
            return
        elapsed_ns = now_ns - self.now_ns
        self.now_ns = now_ns
        if self.busy_count:
            self.plain += (elapsed_ns << SCALE_BITS) // self.busy_count
            self.grown += elapsed_ns * self.growth() // self.busy_count

    def growth(self) -> int:
        """Weight of one nanosecond of service now: doubles every half-life, linear in between."""
        if self.half_life_ns is None:
            return ONE_NS
        doublings, rest_ns = divmod(self.now_ns - self.start_ns, self.half_life_ns)
        return ((self.half_life_ns + rest_ns) << (SCALE_BITS + doublings)) // self.half_life_ns

    def doublings(self) -> int:
        """How often the increment has doubled since the last rebase."""
        return 0 if self.half_life_ns is None else (self.now_ns - self.start_ns) // self.half_life_ns

    def rebase(self) -> None:
        """Shift back by `REBASE_DOUBLINGS`. The caller shifts its own numbers."""
        assert self.half_life_ns is not None
        self.start_ns += REBASE_DOUBLINGS * self.half_life_ns
        self.grown >>= REBASE_DOUBLINGS

    def wall_ns(self, service: int, *, is_grown: bool = True) -> int:
        """Wall time, rounded up, in which a busy lane attains `service` with the current number of busy lanes.

        `service` is measured like `grown`, or like `plain` if `is_grown` is False.
        """
        growth = self.growth() if is_grown else ONE_NS
        return -(-service * max(1, self.busy_count) // growth)


class ServiceBook:
    """The smallest virtual service (attained / weight) among the active sessions of a device.

    A session that becomes active is raised to that minimum, so that neither new nor idle sessions accumulate credit.
    """

    __slots__ = ("_active", "_floor", "_heap")

    def __init__(self) -> None:
        self._active: dict[SessionId, int] = {}
        self._heap: list[tuple[int, SessionId]] = []
        self._floor = 0

    @classmethod
    def of(cls, active: Mapping[SessionId, int], floor: int) -> ServiceBook:
        """Restore a book from its `state()`."""
        book = cls()
        book._active, book._floor = dict(active), floor
        book._rebuild()
        return book

    def state(self) -> tuple[dict[SessionId, int], int]:
        """The virtual service of all active sessions, and the last floor."""
        return dict(self._active), self._floor

    def join(self, session: SessionId, virtual: int) -> int:
        """Make a session active and return its virtual service, raised to the floor if it is lower."""
        lifted = max(virtual, self.floor())
        self._active[session] = lifted
        heapq.heappush(self._heap, (lifted, session))
        return lifted

    def update(self, session: SessionId, virtual: int) -> None:
        """Update the virtual service of an active session. It only grows."""
        self._active[session] = virtual
        heapq.heappush(self._heap, (virtual, session))
        if len(self._heap) > 4 * len(self._active) + 64:
            self._rebuild()

    def leave(self, session: SessionId) -> None:
        """The session neither waits nor runs. If no session is active, the floor keeps its value."""
        self._floor = self.floor()
        self._active.pop(session, None)

    def floor(self) -> int:
        heap = self._heap
        while heap and self._active.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        if heap:
            self._floor = max(self._floor, heap[0][0])
        return self._floor

    def shift(self, bits: int) -> None:
        """Shift all numbers back after the clock was rebased."""
        self._floor >>= bits
        self._active = {session: virtual >> bits for session, virtual in self._active.items()}
        self._rebuild()

    def _rebuild(self) -> None:
        self._heap = [(virtual, session) for session, virtual in self._active.items()]
        heapq.heapify(self._heap)


def jain(shares: Sequence[float]) -> float:
    """Jain's index of `shares`: 1.0 if all are equal, 1/n if one has everything; 1.0 if there are none."""
    return jain_of_sums(sum(shares), sum(share * share for share in shares), len(shares))


def jain_of_sums(share_sum: float, square_sum: float, count: int) -> float:
    """Jain's index of `count` shares with this sum and this sum of squares."""
    return 1.0 if square_sum == 0 else share_sum**2 / (count * square_sum)
