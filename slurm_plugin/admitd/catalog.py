"""The devices that a job may get: the shards that Slurm counts on each node, with the lane reserve from salus.conf.

Slurm's counts take precedence over salus.conf. With a charge above them a job would wait forever, and with a charge
below them it would not get a whole device. Until Slurm has answered, the DeviceName records of salus.conf are used.
Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nodedaemon.config import Config
from nodedaemon.core.admission import DeviceView
from nodedaemon.core.types import DeviceId, LaneSharing
from slurm_plugin.slurm import SlurmNode
from slurm_plugin.slurm.tres import parse_tres


@dataclass(frozen=True, slots=True)
class Catalog:
    """Devices by node, nodes by partition. Equal devices are one view: admission asks what fits, not where."""

    devices: dict[str, tuple[DeviceView, ...]]
    partitions: dict[str, list[str]]
    default_partition: str = ""
    #: The nodes with LaneSharing=account.
    account_nodes: frozenset[str] = frozenset()

    def for_partitions(self, names: Sequence[str]) -> list[DeviceView]:
        """The distinct devices of these partitions; all devices if `names` is empty or Slurm has not answered yet."""
        devices = {
            (device.capacity_bytes, device.lane_reserve_bytes): device
            for node in sorted(self._nodes(names))
            for device in self.devices.get(node, ())
        }
        return list(devices.values())

    def is_memory_shared_by_account(self, names: Sequence[str]) -> bool:
        """Whether a node of these partitions has LaneSharing=account."""
        return bool(self.account_nodes) and not self.account_nodes.isdisjoint(self._nodes(names))

    def _nodes(self, names: Sequence[str]) -> set[str]:
        if not names or not self.partitions:
            return set(self.devices)
        return {node for name in names for node in self.partitions.get(name, ())}

    def shards_max(self) -> int:
        """The number of shards of the largest device, which fills any device."""
        return max((device.units_total for devices in self.devices.values() for device in devices), default=0)


def reserve_bytes(config: Config, node: str, shard_bytes: int) -> int:
    """The smallest lane reserve among a node's devices, each of which has `shard_bytes` of shards.

    With `auto` the reserve is the memory that gres.conf does not count as shards. For a device whose memory is not in
    salus.conf it is 0, which is safe: a job is then charged for its peak.
    """
    devices = config.devices_of(node)
    if not devices:
        return config.for_node(node).lanes.lane_reserve_bytes or 0
    return min(
        max(0, device.memory_bytes - shard_bytes)
        if device.settings.lanes.lane_reserve_bytes is None
        else device.settings.lanes.lane_reserve_bytes
        for device in devices
    )


def catalog_of(config: Config, nodes: Iterable[SlurmNode] = (), default_partition: str = "") -> Catalog:
    unit = config.settings.lanes.shard_unit_bytes
    devices: dict[str, tuple[DeviceView, ...]] = {}
    partitions: dict[str, list[str]] = {}
    for node in nodes:
        for partition in node.partitions:
            partitions.setdefault(partition, []).append(node.name)
        counts = _gres_counts(node.gres)
        if counts["shard"] and counts["gpu"]:
            shard_bytes = counts["shard"] // counts["gpu"] * unit
            reserve = reserve_bytes(config, node.name, shard_bytes)
            devices[node.name] = (DeviceView(DeviceId(f"{node.name}/*"), shard_bytes + reserve, reserve, unit),)
    if not devices:
        for name in config.node_names():
            views = [
                DeviceView(DeviceId(f"{name}/{device.name}"), device.memory_bytes,
                           device.settings.lanes.lane_reserve_bytes or 0, unit)
                for device in config.devices_of(name)
                if device.memory_bytes
            ]  # fmt: skip
            if views:
                devices[name] = tuple(views)
    account_nodes = frozenset(node for node in devices if config.for_node(node).lanes.sharing is LaneSharing.ACCOUNT)
    return Catalog(devices, partitions, default_partition, account_nodes)


def _gres_counts(text: str) -> Counter[str]:
    """The counts of `gpu:a100:2(S:0-1),shard:10K,salus:64` by name, without the sockets in parentheses."""
    counts: Counter[str] = Counter()
    for tres in parse_tres(re.sub(r"\([^)]*\)", "", text)):
        counts[tres.name] += tres.count
    return counts
