"""Calls into a foreign library that may never return, made in a thread of their own with a deadline.

A driver or NVML call cannot be interrupted. The caller gets `OperatingError` when the time is up, the thread stays with
the call, and until that returns every further call fails at once: a hung device costs one thread, never the daemon.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

from nodedaemon.core.errors import OperatingError

T = TypeVar("T")
SECOND_NS = 1_000_000_000


class _Task:
    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.done = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None


class DeadlineThread:
    """One thread that makes calls in order; a CUDA context that is current to it stays so."""

    def __init__(self, name: str, timeout_ns: int = 5 * SECOND_NS) -> None:
        self._name = name
        self._timeout_ns = timeout_ns
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._late: _Task | None = None
        # A daemon thread: the process must be able to end while a call hangs.
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def is_hung(self) -> bool:
        """Whether an earlier call has still not returned."""
        return self._late is not None and not self._late.done.is_set()

    def call(self, what: str, work: Callable[[], T]) -> T:
        """The result of `work`; its exceptions pass. Raises `OperatingError` when the deadline passes."""
        if self.is_hung:
            raise OperatingError(f"{what}: {self._name}: an earlier call has not returned; is the device hung?")
        task = _Task(work)
        self._tasks.put(task)
        if not task.done.wait(self._timeout_ns / SECOND_NS):
            self._late = task
            seconds = self._timeout_ns / SECOND_NS
            raise OperatingError(f"{what}: {self._name}: no answer within {seconds:g} s; is the device hung?")
        if task.error is not None:
            raise task.error
        return cast(T, task.value)

    def close(self) -> None:
        self._tasks.put(None)

    def _serve(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task.value = task.work()
            except BaseException as error:  # handed to the caller, whatever it is
                task.error = error
            task.done.set()
