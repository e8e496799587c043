"""A bounded queue of decisions, written to the database in batches, so that no submission waits for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from accounting.records import AdmissionRecord
from nodedaemon.core.errors import OperatingError
from slurm_plugin.admitd.database import AdmissionDatabase

log = structlog.get_logger()

DECISIONS_MAX = 50_000
BATCH_MAX = 1_000
# One transaction per decision would keep the interpreter busy and delay the submissions behind it.
BATCH_WAIT_S = 1.0


class DecisionQueue:
    """`on_record` is called with every decision, for metrics."""

    def __init__(
        self, store: AdmissionDatabase, on_record: Callable[[AdmissionRecord], None] = lambda _record: None
    ) -> None:
        self._store = store
        self._on_record = on_record
        self._decisions: deque[AdmissionRecord] = deque()
        self._waiting = asyncio.Event()
        # Not the thread that reads profiles: a batch in progress must not delay a submission.
        self._writer = ThreadPoolExecutor(1, "decisions")
        self.dropped_count = 0

    def record(self, decision: AdmissionRecord) -> None:
        """Queue a decision; a full queue drops its oldest decision."""
        self._on_record(decision)
        if len(self._decisions) >= DECISIONS_MAX:
            self._decisions.popleft()
            self.dropped_count += 1
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
        """Write one batch. False if the database did not accept it; then the batch stays in the queue."""
        batch = [self._decisions[index] for index in range(min(BATCH_MAX, len(self._decisions)))]
        if not batch:
            return True
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer, self._store.write, batch)
        except OperatingError as error:
            log.warning("decisions not written", count=len(self._decisions), reason=str(error))
            return False
        for decision in batch:
            if self._decisions and self._decisions[0] is decision:
                self._decisions.popleft()
        return True

    def close(self) -> None:
        self._writer.shutdown(wait=False, cancel_futures=True)
