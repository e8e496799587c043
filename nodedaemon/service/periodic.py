"""Work that the daemon repeats: readings, usage intervals, comparisons with Slurm, and its own upkeep."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from nodedaemon.core.errors import SalusError
from nodedaemon.service.control.systemd import Notifier
from nodedaemon.service.journal.dispatcher import Dispatcher
from nodedaemon.service.usage.recorder import UsageRecorder
from nodedaemon.wire.logs import log, report_suppressed

CLOCK_STEP_NS = 1_000_000_000
UPKEEP_INTERVAL_S_MAX = 5.0


async def repeat(
    interval_s: Callable[[], float], *actions: Callable[[], Awaitable[None] | None], is_delayed: bool = False
) -> None:
    """Do the actions in order, wait, and start again, until cancelled. With `is_delayed`, wait first.

    A failed action is logged and retried in the next round. The other actions are not affected.
    """
    if is_delayed:
        await asyncio.sleep(interval_s())
    while True:
        for action in actions:
            try:
                result = action()
                if result is not None:
                    await result
            except (OSError, SalusError) as error:
                log.error("periodic work failed; it will be retried", action=action.__qualname__, why=str(error))
        await asyncio.sleep(interval_s())


class DaemonUpkeep:
    """Notifies systemd's watchdog, retries a failed journal, detects clock steps, reports suppressed log lines."""

    def __init__(self, notifier: Notifier, dispatcher: Dispatcher, recorder: UsageRecorder) -> None:
        self._notifier = notifier
        self._dispatcher = dispatcher
        self._recorder = recorder
        self._clock_offset_ns = time.time_ns() - time.monotonic_ns()

    def interval_s(self) -> float:
        return min(self._notifier.watchdog_s or UPKEEP_INTERVAL_S_MAX, UPKEEP_INTERVAL_S_MAX)

    def run(self) -> None:
        self._notifier.alive()
        report_suppressed()
        if self._dispatcher.journal is not None:
            self._dispatcher.journal.retry()
        offset_ns = time.time_ns() - time.monotonic_ns()
        if abs(offset_ns - self._clock_offset_ns) > CLOCK_STEP_NS:
            self._recorder.report_clock_step(offset_ns - self._clock_offset_ns)
        self._clock_offset_ns = offset_ns


class IdleExit:
    """Stops a private daemon that has had no job for `exit_idle_s`; 0 keeps the daemon running."""

    def __init__(self, exit_idle_s: float, dispatcher: Dispatcher, stop: asyncio.Event) -> None:
        self._exit_idle_s = exit_idle_s
        self._state = dispatcher.state
        self._stop = stop
        self._idle_since_s = time.monotonic()

    def interval_s(self) -> float:
        return min(self._exit_idle_s / 2 or UPKEEP_INTERVAL_S_MAX, UPKEEP_INTERVAL_S_MAX)

    def run(self) -> None:
        now_s = time.monotonic()
        if self._state.sessions or self._state.jobs:
            self._idle_since_s = now_s
        elif self._exit_idle_s and now_s - self._idle_since_s > self._exit_idle_s:
            log.info("no job for a while: salusd stops", seconds=self._exit_idle_s)
            self._stop.set()
