"""Limits the requests and the open connections of each user, so that no user can keep others waiting.

The limits are by uid, as the kernel reports it. `UserConnections` never limits root. `UserRate` limits every uid that
it is asked about; its callers exempt root, and for requests also the daemon's own user.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable

USERS_MAX = 10_000
#: New connections of one user. A large job may start hundreds of processes at once, but not repeatedly.
CONNECTIONS_PER_S = 20
CONNECTIONS_BURST_S = 15.0
#: Entries of a `KindBudget`, and the entry for all others.
KINDS_MAX = 500
OTHER_KINDS = ("others", -1)


class UserRate:
    """One token bucket per user, with room for the requests of `burst_s` seconds.

    Only the buckets of the `USERS_MAX` users with the latest requests are kept.
    """

    def __init__(self, burst_s: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst_s = burst_s
        self._clock = clock
        self._buckets: OrderedDict[int, tuple[float, float]] = OrderedDict()

    def allows(self, uid: int, requests_per_s: int, cost: int = 1) -> bool:
        """Count one request of the user, or `cost` requests for an expensive one. False if that exceeds the rate."""
        now_s = self._clock()
        capacity = requests_per_s * self._burst_s
        tokens, last_s = self._buckets.pop(uid, (capacity, now_s))
        tokens = min(capacity, tokens + (now_s - last_s) * requests_per_s)
        # A request that costs more than the bucket can hold needs a full bucket.
        is_allowed = tokens >= min(cost, capacity)
        self._buckets[uid] = (max(0.0, tokens - cost) if is_allowed else tokens, now_s)
        if len(self._buckets) > USERS_MAX:
            self._buckets.popitem(last=False)
        return is_allowed


class UserConnections:
    """Counts open connections: in total up to `total_max`, and for each user up to a limit of its own.

    A quarter of the total is reserved for preferred users. Root needs no room: it is always admitted. A user who
    connects repeatedly is limited by rate too, because each connection leads to work and to lines in the log.
    """

    def __init__(self, total_max: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._total_max = total_max
        self._rate = UserRate(CONNECTIONS_BURST_S, clock)
        self._by_uid: dict[int, int] = {}
        self._total = 0

    def admit(self, uid: int, user_max: int, *, is_preferred: bool) -> str:
        """Count a connection of the user. Returns why there is no room for it, or an empty text if it is admitted."""
        if uid == 0:
            return ""
        count = self._by_uid.get(uid, 0)
        if count >= user_max:
            return "its user has too many connections"
        if self._total >= (self._total_max if is_preferred else self._total_max * 3 // 4):
            return "there are too many connections"
        if not self._rate.allows(uid, CONNECTIONS_PER_S):
            return "its user connects too often"
        self._by_uid[uid] = count + 1
        self._total += 1
        return ""

    def release(self, uid: int) -> None:
        """A connection that was admitted is closed."""
        if uid == 0:
            return
        self._total -= 1
        self._by_uid[uid] -= 1
        if not self._by_uid[uid]:
            del self._by_uid[uid]


class KindBudget:
    """Allows each user `count_max` events of each kind in an interval, and counts the rest.

    The table is bounded: beyond `KINDS_MAX` entries, everything new counts as one kind of one user.
    """

    def __init__(self, count_max: int, interval_s: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._count_max = count_max
        self._interval_s = interval_s
        self._clock = clock
        self._start_s = clock()
        self._counts: Counter[tuple[str, int]] = Counter()

    def allows(self, kind: str, uid: int) -> bool:
        key = (kind, uid) if (kind, uid) in self._counts or len(self._counts) < KINDS_MAX else OTHER_KINDS
        self._counts[key] += 1
        return self._counts[key] <= self._count_max

    def end_interval(self) -> dict[tuple[str, int], int]:
        """Start a new interval and return the excess of the old one, by kind and user; empty while it still lasts."""
        now_s = self._clock()
        if now_s - self._start_s < self._interval_s:
            return {}
        excess = {key: count - self._count_max for key, count in self._counts.items() if count > self._count_max}
        self._start_s = now_s
        self._counts.clear()
        return excess


class UserTurns:
    """Runs at most `count_max` pieces of work per user at a time. Further ones of that user wait in order."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._semaphores: dict[int, asyncio.Semaphore] = {}
        self._counts: Counter[int] = Counter()

    @contextlib.asynccontextmanager
    async def turn(self, uid: int) -> AsyncIterator[None]:
        semaphore = self._semaphores.setdefault(uid, asyncio.Semaphore(self._count_max))
        self._counts[uid] += 1
        try:
            async with semaphore:
                yield
        finally:
            self._counts[uid] -= 1
            if not self._counts[uid]:
                del self._counts[uid], self._semaphores[uid]
