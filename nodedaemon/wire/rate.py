"""Limits the requests of each user, so that no user can keep others waiting."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

USERS_MAX = 10_000


class UserRate:
    """A token bucket per user, which holds the requests of `burst_s` seconds.

    It keeps the buckets of the `USERS_MAX` users who asked last.
    """

    def __init__(self, burst_s: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst_s = burst_s
        self._clock = clock
        self._buckets: OrderedDict[int, tuple[float, float]] = OrderedDict()

    def allows(self, uid: int, requests_per_s: int) -> bool:
        """Count one request of the user; False if it is one too many."""
        now_s = self._clock()
        capacity = requests_per_s * self._burst_s
        tokens, last_s = self._buckets.pop(uid, (capacity, now_s))
        tokens = min(capacity, tokens + (now_s - last_s) * requests_per_s)
        is_allowed = tokens >= 1.0
        self._buckets[uid] = (tokens - 1.0 if is_allowed else tokens, now_s)
        if len(self._buckets) > USERS_MAX:
            self._buckets.popitem(last=False)
        return is_allowed
