"""What an admin can change while salusd runs: the policy of a device, drain and resume, and the configuration.

A reload parses and validates the file and tries the new limits on a fork of the engine before anything changes. If any
of this fails, the old configuration stays in effect. A policy that an admin sets is in effect until the next reload.
"""

from __future__ import annotations

import time
from dataclasses import replace

from nodedaemon.core import events
from nodedaemon.core.errors import SalusError
from nodedaemon.core.types import DeviceId
from nodedaemon.service.control.configuration import ActiveConfiguration
from nodedaemon.service.control.systemd import Notifier
from nodedaemon.service.journal.dispatcher import Dispatcher
from nodedaemon.wire.logs import log


class Administration:
    def __init__(self, configuration: ActiveConfiguration, dispatcher: Dispatcher, notifier: Notifier) -> None:
        self._configuration = configuration
        self._dispatcher = dispatcher
        self._notifier = notifier
        self.reload_error = ""
        self.reload_utc_s = time.time()

    def add_devices(self) -> None:
        """Add each device to the engine. A device that is in the journal keeps the policy that an admin set."""
        present = {device.device: device.policy for device in self._dispatcher.engine.snapshot().devices}
        for device, limits in self._configuration.limits().items():
            if device not in present:
                self._dispatcher.submit(events.DeviceAdded(device, limits))
                continue
            try:
                self._dispatcher.request(events.LimitsChanged(device, replace(limits, policy=present[device])))
            except SalusError as error:
                log.error("device limits not changed", device=device, why=str(error))

    def set_policy(self, policy: str, devices: list[DeviceId]) -> None:
        """Set it on every device or on none: the first device refuses an unknown policy."""
        views = self._dispatcher.engine.device_views
        for device in devices:
            self._dispatcher.request(events.LimitsChanged(device, replace(views[device].limits, policy=policy)))

    def drain(self, device: DeviceId, reason: str) -> None:
        self._dispatcher.request(events.DeviceDrained(device, reason))

    def resume(self, device: DeviceId) -> None:
        self._dispatcher.request(events.DeviceResumed(device))

    def reload(self) -> list[str]:
        """Read the file again and return the keys that changed. Raises `RequestError`; the old configuration stays."""
        self._notifier.reloading(time.monotonic_ns())
        limits = {device: view.limits for device, view in self._dispatcher.engine.device_views.items()}
        try:
            config = self._configuration.read_file()
            wanted = self._configuration.limits(config)
            changes = [events.LimitsChanged(device, new) for device, new in wanted.items() if limits.get(device) != new]
            fork = self._dispatcher.engine.fork()
            for change in changes:
                fork.handle(change, time.monotonic_ns())
        except SalusError as error:
            self.reload_error = str(error)
            raise
        finally:
            self._notifier.ready(f"{len(limits)} devices")
        changed = self._configuration.changed_keys(config)
        self._configuration.activate(config)
        for change in changes:
            self._dispatcher.request(change)
        self.reload_error, self.reload_utc_s = "", time.time()
        log.info("configuration reloaded", changed=changed)
        return changed

    def reload_by_signal(self) -> None:
        try:
            self.reload()
        except SalusError as error:
            log.error("configuration not reloaded; the old one stays", why=str(error))
