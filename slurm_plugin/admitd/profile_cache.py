"""Profiles in memory, so that a slow or absent database does not delay submissions.

A profile younger than `fresh_s` comes from memory. If the database does not answer in time, an old profile is used
rather than none. A signature without a profile is looked up every time: it may have been measured since.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from nodedaemon.core.errors import OperatingError
from slurm_plugin.admitd.database import AdmissionDatabase, ProfileLookup

log = structlog.get_logger()

# About a third of job_submit.lua's deadline, because the answer must still be made and sent.
LOOKUP_TIMEOUT_S = 0.15
PROFILES_MAX = 100_000


class ProfileCache:
    def __init__(self, store: AdmissionDatabase, fresh_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self.fresh_s = fresh_s
        self._clock = clock
        self._profiles: OrderedDict[tuple[str, str], tuple[float, ProfileLookup]] = OrderedDict()
        self._reader = ThreadPoolExecutor(1, "profiles")
        self.lookup_failures = 0

    async def find(self, user: str, signature: str) -> ProfileLookup:
        """The profile of a job; an empty lookup for a job without a signature."""
        if not signature:
            return ProfileLookup()
        key = (user, signature)
        cached = self._profiles.get(key)
        if cached and self._clock() - cached[0] < self.fresh_s:
            return cached[1]
        reading = asyncio.get_running_loop().run_in_executor(self._reader, self._store.find, user, signature)
        try:
            lookup = await asyncio.wait_for(reading, LOOKUP_TIMEOUT_S)
        except (OperatingError, TimeoutError) as error:
            self.lookup_failures += 1
            log.warning("profile not read", user=user, signature=signature, reason=str(error) or "timeout")
            return cached[1] if cached else ProfileLookup()
        if lookup.profile is None:
            self._profiles.pop(key, None)
        else:
            self._profiles[key] = (self._clock(), lookup)
            self._profiles.move_to_end(key)
            if len(self._profiles) > PROFILES_MAX:
                self._profiles.popitem(last=False)
        return lookup

    async def find_fresh(self, user: str, signature: str) -> ProfileLookup:
        """Like `find`, but always from the database: for callers that wait for a profile to appear or to grow."""
        cached = self._profiles.pop((user, signature), None)
        lookup = await self.find(user, signature)
        if cached and lookup.profile is None:
            self._profiles[user, signature] = cached
            return cached[1]
        return lookup

    async def has_changed(self, since_utc_ns: int) -> bool:
        """Whether any profile was measured or changed since; True if the database does not answer."""
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._reader, self._store.has_changed, since_utc_ns)
        except OperatingError as error:
            log.warning("profiles not compared", reason=str(error))
            return True

    def close(self) -> None:
        self._reader.shutdown(wait=False, cancel_futures=True)
