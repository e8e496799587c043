"""Virtual time: which timer fires next, in an order that depends only on the simulated world.

Timers of the same nanosecond fire by kind and then by number, never by the order in which they were set. A run that
wakes up more often (single iterations) must see them in the same order as one that wakes up less often (iterations
simulated together).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from heapq import heappop, heappush


class TimerKind(IntEnum):
    """Kinds of timers, in the order in which those of one moment fire."""

    BOUNDARY = 0
    END = 1
    WAKE = 2
    REQUEST = 3
    SUBMISSION = 4


class Timer:
    """A call that is due at some time. `cancel` prevents it."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None


class VirtualClock:
    """Fires timers in order of time. Time moves only in `run`."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._heap: list[tuple[int, int, int, int, Timer]] = []
        self._timer_count = 0

    def call_at(self, at_ns: int, kind: TimerKind, number: int, action: Callable[[], None]) -> Timer:
        """Call `action` at `at_ns`. `number` orders timers of the same kind and moment."""
        assert at_ns >= self.now_ns
        timer = Timer(action)
        self._timer_count += 1
        heappush(self._heap, (at_ns, kind, number, self._timer_count, timer))
        return timer

    def reschedule(
        self, timer: Timer | None, left_ns: int | None, kind: TimerKind, number: int, action: Callable[[], None]
    ) -> Timer | None:
        """Replace a timer with one that fires `left_ns` from now, or with none."""
        if timer is not None:
            timer.cancel()
        return None if left_ns is None else self.call_at(self.now_ns + left_ns, kind, number, action)

    def run(self) -> None:
        """Fire timers until none is left."""
        heap = self._heap
        while heap:
            at_ns, _, _, _, timer = heappop(heap)
            if timer.action is not None:
                self.now_ns = at_ns
                timer.action()
