"""One timer per device: the engine requests a `Ticked` event for the device at a certain time."""

from __future__ import annotations

import asyncio

from nodedaemon.core import events
from nodedaemon.core.commands import WakeAt
from nodedaemon.core.types import DeviceId
from nodedaemon.service.journal.dispatcher import Dispatcher


class WakeTimers:
    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._timers: dict[DeviceId, asyncio.TimerHandle] = {}

    def wake_at(self, command: WakeAt) -> None:
        """Replace the device's timer."""
        previous = self._timers.pop(command.device, None)
        if previous is not None:
            previous.cancel()
        # The event loop runs on the same monotonic clock as the engine.
        loop = asyncio.get_running_loop()
        self._timers[command.device] = loop.call_at(command.at_ns / 1e9, self._tick, command.device)

    def _tick(self, device: DeviceId) -> None:
        self._timers.pop(device, None)
        self._dispatcher.submit(events.Ticked(device))
