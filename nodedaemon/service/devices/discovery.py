"""The devices of a node: host devices from the configuration, GPUs from NVML."""

from __future__ import annotations

import os

from nodedaemon.config import Config, Settings, device_limits
from nodedaemon.config.choices import AutoDetect, DeviceType
from nodedaemon.core.errors import OperatingError
from nodedaemon.core.types import DeviceId, DeviceLimits
from nodedaemon.drivers.cuda import CudaDevice, discover
from nodedaemon.drivers.device import DeviceDriver
from nodedaemon.drivers.host import HostDevice, default_memory_bytes, device_uuid
from nodedaemon.drivers.nvml import Nvml


def make_devices(config: Config, node: str) -> dict[DeviceId, DeviceDriver]:
    """Open every device. Raises `OperatingError` if a configured device cannot be opened, or if there is none."""
    devices: dict[DeviceId, DeviceDriver] = {}
    for device in _detect(config, node):
        devices[device.uuid] = device
    for named in config.devices_of(node):
        if named.type is DeviceType.HOST:
            memory_bytes = named.memory_bytes or default_memory_bytes()
            made = HostDevice(named.name, memory_bytes, node=node, index=len(devices), cores=named.cores)
            devices[made.uuid] = made
    if not devices:
        raise OperatingError(
            f"start refused: node {node}: no device; add DeviceName=host0 Type=host Memory=2G to salus.conf"
        )
    return devices


def _detect(config: Config, node: str) -> list[CudaDevice]:
    named = [one for one in config.devices_of(node) if one.type is DeviceType.CUDA]
    is_wanted = config.for_node(node).daemon.auto_detect is AutoDetect.NVML
    if not named and not is_wanted:
        return []
    try:
        found = list(discover(Nvml(), os.environ.get("CUDA_VISIBLE_DEVICES")))
    except OperatingError:
        # A machine without GPUs has no NVML. That is an error only if the configuration names a GPU.
        if named:
            raise
        return []
    caps = {one.uuid: one.memory_bytes for one in named}
    for device in found:
        if caps.get(device.uuid):
            device.cap(caps[device.uuid])
    return found if is_wanted else [device for device in found if device.uuid in caps]


def settings_of(config: Config, node: str, device: DeviceDriver) -> Settings:
    for named in config.devices_of(node):
        if named.type is DeviceType.HOST and device_uuid(node, named.name) == device.uuid:
            return named.settings
    return config.for_device(node, device.uuid)


def limits_of(settings: Settings, device: DeviceDriver) -> DeviceLimits:
    return device_limits(settings, device.usable_bytes)
