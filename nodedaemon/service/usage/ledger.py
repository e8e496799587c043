"""The ledger: records go to the spool at once and to the database in batches, whenever it takes them.

`record` never waits and never raises. The database is spoken to in a thread of its own; while it is away the spool
grows to its bound. A batch that the database has taken is deleted, so one may be written twice after a crash:
records are keyed by nature, and the second time changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from accounting.records import Record, decode, encode, worth
from nodedaemon.core.errors import OperatingError, PeerError
from nodedaemon.service.jobs.registry import Recorded
from nodedaemon.service.usage.spool import Spool, Value

BACKOFF_SECONDS_MAX = 60.0


class Store(Protocol):
    """The database as the ledger needs it; every call may block, and raises `OperatingError` when it is away."""

    def write(self, records: list[Record]) -> None: ...

    def find_profile(self, cluster: str, user: str, signature: str, model: str) -> Recorded | None: ...

    def close(self) -> None: ...


class Ledger:
    def __init__(
        self,
        spool: Spool,
        store: Store,
        *,
        interval_s: Callable[[], float],
        slow_s: Callable[[], float] = lambda: 5.0,
        profile_timeout_s: float = 2.0,
        log: Any,
    ) -> None:
        self._spool = spool
        self._store = store
        self._interval_s = interval_s
        self._slow_s = slow_s
        self._profile_timeout_s = profile_timeout_s
        self._log = log
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._profiles: dict[tuple[str, str, str, str], Recorded] = {}
        self._wanted = asyncio.Event()
        self.is_up = True
        self.written_count = 0
        self.unreadable_count = 0
        self.failure_count = 0
        self.last_error = ""

    @property
    def spool(self) -> Spool:
        return self._spool

    def record(self, record: Record) -> None:
        self._spool.append(Value(worth(record)), encode(record))

    def flush_soon(self) -> None:
        self._wanted.set()

    async def find_profile(self, cluster: str, user: str, signature: str, model: str) -> Recorded | None:
        """The stored profile, or the one last seen where the database does not answer in time."""
        key = (cluster, user, signature, model)
        try:
            async with asyncio.timeout(self._profile_timeout_s):
                found = await asyncio.get_running_loop().run_in_executor(self._thread, self._store.find_profile, *key)
        except (OperatingError, TimeoutError) as error:
            self._log.warning("profile not read", signature=signature, why=str(error) or "the database is slow")
            return self._profiles.get(key)
        if found is not None:
            self._profiles[key] = found
        return found

    async def run(self) -> None:
        """Hand batches over until cancelled."""
        delay_s = 0.0
        while True:
            try:
                async with asyncio.timeout(delay_s or self._interval_s()):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            is_written = await self.flush()
            delay_s = 0.0 if is_written else min(BACKOFF_SECONDS_MAX, max(1.0, delay_s * 2))

    async def flush(self) -> bool:
        """Write all batches there are; False when the database did not take one, which then stays."""
        while (batch := self._spool.next_batch()) is not None:
            records = self._readable(batch.payloads)
            try:
                if records:
                    await self._write(records)
            except OperatingError as error:
                if self.is_up:
                    self._log.error("database away, records are spooled", why=str(error))
                self.is_up, self.last_error = False, str(error)
                self.failure_count += 1
                return False
            self._spool.finish(batch)
            self.written_count += len(records)
            if not self.is_up:
                self._log.info("database is back", spooled=self._spool.record_count)
            self.is_up, self.last_error = True, ""
        return True

    async def _write(self, records: list[Record]) -> None:
        """Write in the ledger's thread. A database that hangs or is locked counts as away long before it gives up."""
        writing = asyncio.get_running_loop().run_in_executor(self._thread, self._store.write, records)
        done, _ = await asyncio.wait([writing], timeout=self._slow_s())
        if not done:
            self._log.error("database slow, records are spooled")
            self.is_up, self.last_error = False, "it does not answer in time"
        await writing

    async def close(self, timeout_s: float = 3.0) -> None:
        """A last try to hand over what is there; the rest waits in the spool for the next start."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.flush()
        except TimeoutError:
            pass
        self._spool.close()
        self._thread.submit(self._store.close)
        self._thread.shutdown(wait=False)

    def _readable(self, payloads: tuple[bytes, ...]) -> list[Record]:
        records = []
        for payload in payloads:
            try:
                records.append(decode(payload))
            except PeerError:
                self.unreadable_count += 1
        return records
