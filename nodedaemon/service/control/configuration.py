"""The configuration in force and what it means for the devices: read, reloaded in two phases, changed live.

A reload parses, validates and tries the new limits on a copy of the engine before anything is swapped; on any finding
the old configuration stays and the finding is told. A policy set live holds till the next reload.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nodedaemon.config import Config, Rejected, Settings, load
from nodedaemon.core import events
from nodedaemon.core.errors import RequestError, SalusError
from nodedaemon.core.events import Event
from nodedaemon.core.types import DeviceId
from nodedaemon.drivers.device import Device
from nodedaemon.service.control.systemd import Notifier
from nodedaemon.service.devices.discovery import limits_of, settings_of
from nodedaemon.service.journal.dispatcher import Dispatcher


class Rules:
    def __init__(
        self, config: Config, config_file: Path | None, node: str, devices: Mapping[DeviceId, Device], log: Any
    ) -> None:
        self._config = config
        self._config_file = config_file
        self._node = node
        self._devices = devices
        self._log = log
        self.settings: Settings = config.for_node(node)
        self.drain_reasons: dict[DeviceId, str] = {}
        self.reload_error = ""
        self.reload_utc_s = time.time()
        self._tell_devices()

    def _tell_devices(self) -> None:
        for device in self._devices.values():
            device.xids_ignored = frozenset(self.settings.readings.xid_ignored)

    def settings_of(self, device: DeviceId) -> Settings:
        return settings_of(self._config, self._node, self._devices[device])

    def settings_of_partition(self, partition: str) -> Settings:
        return self._config.for_partition(partition)

    def add_devices(self, dispatcher: Dispatcher) -> None:
        """Tell the engine of each device; one that it knows from the journal keeps the policy that was set live."""
        known = {device.device: device for device in dispatcher.engine.snapshot().devices}
        for device in self._devices.values():
            limits = limits_of(self.settings_of(device.uuid), device)
            if device.uuid not in known:
                dispatcher.submit(events.DeviceAdded(device.uuid, limits))
                continue
            try:
                dispatcher.request(events.LimitsChanged(device.uuid, replace(limits, policy=known[device.uuid].policy)))
            except SalusError as error:
                self._log.error("limits not changed", device=device.uuid, why=str(error))

    def set_policy(self, dispatcher: Dispatcher, policy: str, devices: list[DeviceId]) -> None:
        """All of them or none: an unknown policy is refused by the first."""
        for device in devices:
            limits = next(one.limits for one in dispatcher.engine.devices() if one.id == device)
            dispatcher.request(events.LimitsChanged(device, replace(limits, policy=policy)))

    def drain(self, dispatcher: Dispatcher, device: DeviceId, reason: str) -> None:
        self.drain_reasons[device] = reason
        dispatcher.request(events.DeviceDrained(device))

    def resume(self, dispatcher: Dispatcher, device: DeviceId) -> None:
        self.drain_reasons.pop(device, None)
        dispatcher.request(events.DeviceResumed(device))

    def reload(self, dispatcher: Dispatcher, notifier: Notifier) -> list[str]:
        """Take the file anew; the answer names the keys that changed. Raises `RequestError` and keeps the old one."""
        notifier.reloading(time.monotonic_ns())
        try:
            config = load(self._config_file)
            if isinstance(config, Rejected):
                raise RequestError(f"reload refused, the old configuration stays:\n{config}")
            changes = self._changes(config, dispatcher)
            fork = dispatcher.engine.fork()
            for change in changes:
                fork.handle(change, time.monotonic_ns())
        except SalusError as error:
            self.reload_error = str(error)
            raise
        finally:
            notifier.ready(f"{len(self._devices)} devices")
        names = {*config.values, *self._config.values}
        changed = sorted(name for name in names if _value(config, name) != _value(self._config, name))
        self._config, self.settings = config, config.for_node(self._node)
        self._tell_devices()
        for change in changes:
            dispatcher.request(change)
        self.reload_error, self.reload_utc_s = "", time.time()
        self._log.info("configuration reloaded", changed=changed)
        return changed

    def _changes(self, config: Config, dispatcher: Dispatcher) -> list[Event]:
        limits = {device.id: device.limits for device in dispatcher.engine.devices()}
        wanted = {
            device.uuid: limits_of(settings_of(config, self._node, device), device) for device in self._devices.values()
        }
        return [events.LimitsChanged(device, new) for device, new in wanted.items() if limits.get(device) != new]


def _value(config: Config, name: str) -> object:
    found = config.values.get(name)
    return None if found is None else found.value
