"""What salus-admitd keeps in and reads from the database, so that a database that is away costs no submit.

Profiles come from memory while they are fresh; a stale one is better than none when the database is silent,
and an unknown signature is always asked for again. Decisions wait in a bounded queue and are written in batches.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import structlog

from accounting.records import AdmissionRecord
from nodedaemon.core.errors import OperatingError
from nodedaemon.core.types import Profile
from slurm_plugin.admitd.decision import ProfileLookup

log = structlog.get_logger()

# A third of job_submit.lua's deadline: the answer must still be made and sent.
LOOKUP_TIMEOUT_S = 0.15
PROFILES_MAX = 100_000
DECISIONS_MAX = 50_000
BATCH_MAX = 1_000
# Decisions wait for company: a transaction each would take the interpreter from the submits behind it.
BATCH_WAIT_S = 1.0


class Records(Protocol):
    """The database, as far as admission needs it. Calls block."""

    def find(self, user: str, signature: str) -> ProfileLookup: ...

    def has_changed(self, since_utc_ns: int) -> bool: ...

    def write(self, records: list[AdmissionRecord]) -> None: ...


@dataclass(slots=True)
class Counters:
    """What metrics export of the storage."""

    lookup_failures: int = 0
    decisions_dropped: int = 0
    decisions_written: int = 0


class Storage:
    def __init__(self, records: Records, fresh_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._records = records
        self.fresh_s = fresh_s
        self._clock = clock
        self._profiles: OrderedDict[tuple[str, str], tuple[float, ProfileLookup]] = OrderedDict()
        self._decisions: deque[AdmissionRecord] = deque()
        self._waiting = asyncio.Event()
        # One thread reads and one writes: a batch under way must not delay a submit.
        self._reader = ThreadPoolExecutor(1, "profiles")
        self._writer = ThreadPoolExecutor(1, "decisions")
        self.counters = Counters()

    async def find(self, user: str, signature: str) -> ProfileLookup:
        """What is known of a job; nothing for one without a signature."""
        if not signature:
            return ProfileLookup()
        key = (user, signature)
        cached = self._profiles.get(key)
        if cached and self._clock() - cached[0] < self.fresh_s:
            return cached[1]
        lookup = asyncio.get_running_loop().run_in_executor(self._reader, self._records.find, user, signature)
        try:
            known = await asyncio.wait_for(lookup, LOOKUP_TIMEOUT_S)
        except (OperatingError, TimeoutError) as error:
            self.counters.lookup_failures += 1
            log.warning("profile not read", user=user, signature=signature, reason=str(error) or "timeout")
            return cached[1] if cached else ProfileLookup()
        if known.profile is None:
            self._profiles.pop(key, None)
        else:
            self._profiles[key] = (self._clock(), known)
            self._profiles.move_to_end(key)
            if len(self._profiles) > PROFILES_MAX:
                self._profiles.popitem(last=False)
        return known

    async def find_fresh(self, user: str, signature: str) -> ProfileLookup:
        """As `find`, but from the database: for those who wait for a profile to become known or to grow."""
        cached = self._profiles.pop((user, signature), None)
        known = await self.find(user, signature)
        if cached and known.profile is None:
            self._profiles[user, signature] = cached
            return cached[1]
        return known

    async def has_changed(self, since_utc_ns: int) -> bool:
        """Whether any profile was learned or changed since; True where nobody can tell."""
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._reader, self._records.has_changed, since_utc_ns)
        except OperatingError as error:
            log.warning("profiles not compared", reason=str(error))
            return True

    def record(self, decision: AdmissionRecord) -> None:
        """Keep a decision for the database; the oldest goes where more wait than may."""
        if len(self._decisions) >= DECISIONS_MAX:
            self._decisions.popleft()
            self.counters.decisions_dropped += 1
        self._decisions.append(decision)
        self._waiting.set()

    async def write_forever(self, retry_s: float = 2.0) -> None:
        while True:
            await self._waiting.wait()
            await asyncio.sleep(BATCH_WAIT_S)
            self._waiting.clear()
            while self._decisions:
                if not await self.flush():
                    await asyncio.sleep(retry_s)

    async def flush(self) -> bool:
        """Write one batch; False where the database did not take it, and then nothing is lost."""
        batch = [self._decisions[index] for index in range(min(BATCH_MAX, len(self._decisions)))]
        if not batch:
            return True
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer, self._records.write, batch)
        except OperatingError as error:
            log.warning("decisions not written", count=len(self._decisions), reason=str(error))
            return False
        for decision in batch:
            if self._decisions and self._decisions[0] is decision:
                self._decisions.popleft()
        self.counters.decisions_written += len(batch)
        return True

    def close(self) -> None:
        self._reader.shutdown(wait=False, cancel_futures=True)
        self._writer.shutdown(wait=False, cancel_futures=True)


def largest(profiles: list[tuple[Profile, int]]) -> ProfileLookup:
    """One profile for a job that may run on several device models: the largest of each figure."""
    if not profiles:
        return ProfileLookup()
    times = [profile.iteration_ns for profile, _ in profiles if profile.iteration_ns is not None]
    return ProfileLookup(
        Profile(
            max(profile.persistent_bytes for profile, _ in profiles),
            max(profile.ephemeral_bytes for profile, _ in profiles),
            max(times, default=None),
            sum(profile.run_count for profile, _ in profiles),
        ),
        max(version for _, version in profiles),
    )
