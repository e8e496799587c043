"""How much one user may ask: a bucket of one second's requests each, so that nobody keeps others waiting."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

USERS_MAX = 10_000


class UserRate:
    def __init__(self, requests_per_s: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.requests_per_s = requests_per_s
        self._clock = clock
        self._buckets: OrderedDict[int, tuple[float, float]] = OrderedDict()

    def allows(self, uid: int) -> bool:
        now = self._clock()
        left, then = self._buckets.pop(uid, (float(self.requests_per_s), now))
        left = min(float(self.requests_per_s), left + (now - then) * self.requests_per_s)
        is_allowed = left >= 1.0
        self._buckets[uid] = (left - 1.0 if is_allowed else left, now)
        if len(self._buckets) > USERS_MAX:
            self._buckets.popitem(last=False)
        return is_allowed
