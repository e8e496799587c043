"""Slurm's queue for `status` and `why`. squeue is expensive for slurmctld, so all callers share its answers.

One squeue runs at a time, and at most one per `INTERVAL_S`. Nobody gets an answer that is older than the question: a
user who has just submitted a job finds it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from slurm_plugin.slurm import QueuedJob

INTERVAL_S = 1.0


class QueueListing:
    """`read` returns the queue. It blocks, so it runs in a thread."""

    def __init__(self, read: Callable[[], list[QueuedJob]], interval_s: float = INTERVAL_S) -> None:
        self.read = read
        self._interval_s = interval_s
        self._started_s = -interval_s
        #: The reading that will start next; those who ask before it starts share it.
        self._next: asyncio.Task[list[QueuedJob]] | None = None
        self._lock = asyncio.Lock()

    async def jobs(self) -> list[QueuedJob]:
        if self._next is None:
            self._next = asyncio.create_task(self._read())
            # Everybody who asked may have left by the time it fails.
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())
        # A caller that gives up must not end the reading of the others.
        return await asyncio.shield(self._next)

    async def _read(self) -> list[QueuedJob]:
        async with self._lock:
            await asyncio.sleep(self._started_s + self._interval_s - time.monotonic())
            self._started_s, self._next = time.monotonic(), None
            return await asyncio.to_thread(self.read)
