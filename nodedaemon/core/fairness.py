"""Attained service, weights and decay.

Service is wall time divided by the number of lanes that are busy at that moment, so what all sessions of a device
attain sums to the time in which it worked. Decay never touches old numbers: the increment grows instead, which keeps
the order and costs nothing a session. Fixed point, no floats: equal inputs give equal decisions on every machine.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from nodedaemon.core.types import SessionId

#: Fraction bits of service numbers: a nanosecond shared by 16 lanes still counts.
SCALE_BITS = 16
ONE_NS = 1 << SCALE_BITS

#: Increments double once a half-life; after that many doublings all numbers are shifted back, which keeps them small.
REBASE_DOUBLINGS = 64


class ServiceClock:
    """Integrates service over time for one device: what a lane that was busy all along would have attained."""

    __slots__ = ("busy_count", "grown", "half_life_ns", "now_ns", "plain", "start_ns")

    def __init__(self, now_ns: int, half_life_ns: int | None = None) -> None:
        self.now_ns = now_ns
        self.start_ns = now_ns
        self.half_life_ns = half_life_ns
        self.busy_count = 0
        self.plain = 0
        self.grown = 0

    def advance(self, now_ns: int) -> None:
        """Bring both integrals up to `now_ns`; time that runs backwards is taken as standing still."""
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
        """Shift back by `REBASE_DOUBLINGS`; the caller shifts what it has stored."""
        assert self.half_life_ns is not None
        self.start_ns += REBASE_DOUBLINGS * self.half_life_ns
        self.grown >>= REBASE_DOUBLINGS

    def wall_ns(self, service: int, *, is_grown: bool = True) -> int:
        """Wall time in which one busy lane attains `service`, decayed or plain, at the present sharing, rounded up."""
        growth = self.growth() if is_grown else ONE_NS
        return -(-service * max(1, self.busy_count) // growth)


class ServiceBook:
    """The smallest virtual service (attained / weight) among the active sessions of a device.

    A session that becomes active is lifted to that floor: neither a newcomer nor a sleeper may claim the past.
    """

    __slots__ = ("_active", "_floor", "_heap")

    def __init__(self) -> None:
        self._active: dict[SessionId, int] = {}
        self._heap: list[tuple[int, SessionId]] = []
        self._floor = 0

    @classmethod
    def of(cls, active: Mapping[SessionId, int], floor: int) -> ServiceBook:
        """The book that had this `state()`."""
        book = cls()
        book._active, book._floor = dict(active), floor
        book._rebuild()
        return book

    def state(self) -> tuple[dict[SessionId, int], int]:
        """What the active have attained, and the floor as it was last asked for."""
        return dict(self._active), self._floor

    def join(self, session: SessionId, virtual: int) -> int:
        """Make a session active and return its virtual service, lifted to the floor."""
        lifted = max(virtual, self.floor())
        self._active[session] = lifted
        heapq.heappush(self._heap, (lifted, session))
        return lifted

    def update(self, session: SessionId, virtual: int) -> None:
        """Note what an active session has attained; it only grows."""
        self._active[session] = virtual
        heapq.heappush(self._heap, (virtual, session))
        if len(self._heap) > 4 * len(self._active) + 64:
            self._rebuild()

    def leave(self, session: SessionId) -> None:
        """The session waits and runs no more; without any active one the floor stays where it was."""
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
        """Follow a rebase of the clock."""
        self._floor >>= bits
        self._active = {session: virtual >> bits for session, virtual in self._active.items()}
        self._rebuild()

    def _rebuild(self) -> None:
        self._heap = [(virtual, session) for session, virtual in self._active.items()]
        heapq.heapify(self._heap)


def jain(shares: Sequence[float]) -> float:
    """Jain's index of `shares`: 1.0 where all are equal, 1/n where one has everything; 1.0 for none."""
    squares = sum(share * share for share in shares)
    return 1.0 if squares == 0 else sum(shares) ** 2 / (len(shares) * squares)
