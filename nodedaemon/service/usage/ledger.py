"""The ledger writes usage records to the spool at once and to the database in batches.

`record` never waits and never raises. The database has a thread of its own; while it does not answer, the spool grows
up to its bound. A batch is deleted after the database has accepted it, so a crash may write a batch twice. Records have
natural keys, so the second write changes nothing.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from accounting.profiles import ProfileView
from accounting.records import Record, decode, encode, importance
from nodedaemon.core.errors import OperatingError, PeerError
from nodedaemon.service.control.configuration import ActiveConfiguration
from nodedaemon.service.usage.spool import RecordValue, Spool
from nodedaemon.wire.logs import log

BACKOFF_S_MAX = 60.0
PROFILE_TIMEOUT_S = 2.0
#: Profiles cached for when the database does not answer. Users choose the signatures, so the cache is bounded.
PROFILES_KEPT_MAX = 1000


class Store(Protocol):
    """The ledger's view of the database. Every call may block; it raises `OperatingError` if there is no answer."""

    def write(self, records: list[Record]) -> None: ...

    def find_profile(self, user: str, signature: str, model: str) -> ProfileView | None: ...

    def close(self) -> None: ...


class Ledger:
    def __init__(self, spool: Spool, store: Store, configuration: ActiveConfiguration) -> None:
        self.spool = spool
        self._store = store
        self._configuration = configuration
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._profiles: dict[tuple[str, str, str], ProfileView] = {}
        self._wanted = asyncio.Event()
        self.is_up = True
        self.last_error = ""

    def record(self, record: Record) -> None:
        self.spool.append(RecordValue(importance(record)), encode(record))

    def flush_soon(self) -> None:
        self._wanted.set()

    async def find_profile(self, user: str, signature: str, model: str) -> ProfileView | None:
        """The stored profile; if the database does not answer in time, the one that it returned last."""
        key = (user, signature, model)
        try:
            async with asyncio.timeout(PROFILE_TIMEOUT_S):
                found = await asyncio.get_running_loop().run_in_executor(self._thread, self._store.find_profile, *key)
        except (OperatingError, TimeoutError) as error:
            log.warning("profile not read", signature=signature, why=str(error) or "the database is slow")
            return self._profiles.get(key)
        if found is not None:
            self._profiles.pop(key, None)
            self._profiles[key] = found
            if len(self._profiles) > PROFILES_KEPT_MAX:
                del self._profiles[next(iter(self._profiles))]
        return found

    async def run(self) -> None:
        """Write batches until cancelled."""
        delay_s = 0.0
        while True:
            try:
                async with asyncio.timeout(delay_s or self._configuration.settings.storage.batch_interval_ns / 1e9):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            is_written = await self.flush()
            delay_s = 0.0 if is_written else min(BACKOFF_S_MAX, max(1.0, delay_s * 2))

    async def flush(self) -> bool:
        """Write all batches. False if the database did not accept one; that batch stays in the spool."""
        while (batch := self.spool.next_batch()) is not None:
            records = self._readable(batch.payloads)
            try:
                if records:
                    await self._write(records)
            except OperatingError as error:
                if self.is_up:
                    log.error("database does not answer, records stay in the spool", why=str(error))
                self.is_up, self.last_error = False, str(error)
                return False
            self.spool.finish(batch)
            if not self.is_up:
                log.info("database answers again", spooled=self.spool.record_count)
            self.is_up, self.last_error = True, ""
        return True

    async def _write(self, records: list[Record]) -> None:
        """Write in the ledger's thread. A database that hangs or is locked counts as down after `StorageTimeout`."""
        writing = asyncio.get_running_loop().run_in_executor(self._thread, self._store.write, records)
        done, _ = await asyncio.wait([writing], timeout=self._configuration.settings.storage.timeout_ns / 1e9)
        if not done:
            log.error("database slow, records stay in the spool")
            self.is_up, self.last_error = False, "it does not answer in time"
        await writing

    async def close(self, timeout_s: float = 3.0) -> None:
        """Try once more to write all records. What is left stays in the spool for the next start."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.flush()
        except TimeoutError:
            pass
        self.spool.close()
        self._thread.submit(self._store.close)
        self._thread.shutdown(wait=False)

    def _readable(self, payloads: tuple[bytes, ...]) -> list[Record]:
        records = []
        for payload in payloads:
            try:
                records.append(decode(payload))
            except PeerError:
                log.error("unreadable record dropped", bytes=len(payload))
        return records
