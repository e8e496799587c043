"""Virtual time: what is due next, in an order that depends on the simulated world alone.

Things due at the same nanosecond go by kind and then by number, never by when they were put down: a run that wakes up
more often (single iterations) must see them in the same order as one that does not (coalesced ones).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from heapq import heappop, heappush


class Due(IntEnum):
    """Kinds of appointments, in the order in which those of one moment are kept."""

    BOUNDARY = 0
    END = 1
    WAKE = 2
    REQUEST = 3
    SUBMISSION = 4


class Appointment:
    """Something to do at a time; `cancel` makes it nothing."""

    __slots__ = ("action", "at_ns")

    def __init__(self, at_ns: int, action: Callable[[], None]) -> None:
        self.at_ns = at_ns
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None


class VirtualClock:
    """Keeps appointments in order of time. Time moves only in `run`."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._heap: list[tuple[int, int, int, int, Appointment]] = []
        self._put_count = 0

    def put(self, at_ns: int, kind: Due, number: int, action: Callable[[], None]) -> Appointment:
        """Have `action` called at `at_ns`; `number` orders appointments of the same kind and moment."""
        assert at_ns >= self.now_ns
        appointment = Appointment(at_ns, action)
        self._put_count += 1
        heappush(self._heap, (at_ns, kind, number, self._put_count, appointment))
        return appointment

    def move(
        self, appointment: Appointment | None, left_ns: int | None, kind: Due, number: int, action: Callable[[], None]
    ) -> Appointment | None:
        """Replace an appointment by one in `left_ns` from now, or by none."""
        if appointment is not None:
            appointment.cancel()
        return None if left_ns is None else self.put(self.now_ns + left_ns, kind, number, action)

    def run(self) -> None:
        """Keep appointments until none is left."""
        heap = self._heap
        while heap:
            at_ns, _, _, _, appointment = heappop(heap)
            if appointment.action is not None:
                self.now_ns = at_ns
                appointment.action()
