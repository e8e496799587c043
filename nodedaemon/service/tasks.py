"""Background work: tasks that run until they are done or until their owner closes them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from typing import Any


class BackgroundTasks:
    """Keeps its tasks alive. A task that fails is reported to the exception handler of the event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            context = {"message": "a background task failed", "exception": error, "task": task}
            task.get_loop().call_exception_handler(context)


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
