"""Calls into a foreign library that may never return, made in a thread of their own with a deadline.

A driver or NVML call cannot be interrupted. The caller gets `OperatingError` when the time is up, and the thread stays
in the call. Until that call returns, every further call fails at once. So a hung device costs one thread, and never
blocks the daemon.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from nodedaemon.core.errors import OperatingError
from nodedaemon.core.types import SECOND_NS

T = TypeVar("T")


class DeadlineThread:
    """One thread that makes calls in order. A CUDA context that is current to the thread stays current."""

    def __init__(self, name: str, timeout_ns: int = 5 * SECOND_NS) -> None:
        self._name = name
        self._timeout_s = timeout_ns / SECOND_NS
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._late: Future[Any] | None = None
        # A daemon thread, unlike those of an executor: the process must be able to end while a call hangs.
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    @property
    def is_hung(self) -> bool:
        """Whether an earlier call has still not returned."""
        return self._late is not None and not self._late.done()

    def call(self, what: str, work: Callable[[], T]) -> T:
        """Return the result of `work` or raise its exception. Raises `OperatingError` when the deadline passes."""
        if self.is_hung:
            raise OperatingError(f"{what}: {self._name}: an earlier call has not returned; is the device hung?")
        future: Future[T] = Future()
        self._calls.put((future, work))
        if not wait([future], self._timeout_s).done:
            self._late = future
            raise OperatingError(f"{what}: {self._name}: no answer within {self._timeout_s:g} s; is the device hung?")
        return future.result()

    def close(self) -> None:
        self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            future, work = call
            try:
                future.set_result(work())
            except BaseException as error:  # the caller gets it, whatever it is
                future.set_exception(error)
