"""The active configuration: every part asks it for its settings, so a reload takes effect everywhere at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nodedaemon.config import Config, Rejected, Settings, changed_keys, load
from nodedaemon.core.errors import RequestError
from nodedaemon.core.types import DeviceId, DeviceLimits
from nodedaemon.drivers.device import DeviceDriver
from nodedaemon.service.devices.discovery import limits_of, settings_of


class ActiveConfiguration:
    """`settings` are those of this node; devices and partitions may have their own."""

    def __init__(
        self, config: Config, config_file: Path | None, node: str, devices: Mapping[DeviceId, DeviceDriver]
    ) -> None:
        self._config_file = config_file
        self._node = node
        self._devices = devices
        self.activate(config)

    def activate(self, config: Config) -> None:
        self._config = config
        self.settings: Settings = config.for_node(self._node)
        for device in self._devices.values():
            device.xids_ignored = frozenset(self.settings.readings.xid_ignored)

    def read_file(self) -> Config:
        """Parse and validate the file again. Raises `RequestError` with every finding; nothing changes yet."""
        config = load(self._config_file)
        if isinstance(config, Rejected):
            raise RequestError(f"reload refused, the old configuration stays:\n{config}")
        return config

    def for_device(self, device: DeviceId) -> Settings:
        return settings_of(self._config, self._node, self._devices[device])

    def for_partition(self, partition: str) -> Settings:
        return self._config.for_partition(partition)

    def limits(self, config: Config | None = None) -> dict[DeviceId, DeviceLimits]:
        """The engine's limits of each device under this configuration, or under `config`."""
        return {
            device.uuid: limits_of(settings_of(config or self._config, self._node, device), device)
            for device in self._devices.values()
        }

    def changed_keys(self, config: Config) -> list[str]:
        """Names of the keys whose value for this node differs in `config`, records included."""
        return changed_keys(self._config, config, self._node)

    def reading_interval_s(self) -> float:
        return self.settings.readings.interval_ns / 1e9

    def usage_interval_s(self) -> float:
        return self.settings.storage.usage_interval_ns / 1e9

    def reconcile_interval_s(self) -> float:
        return self.settings.slurm.reconcile_interval_ns / 1e9

    @property
    def run_directory(self) -> Path:
        """The directory of the session socket, the Prolog's files and MPS."""
        return Path(self.settings.daemon.socket).parent
