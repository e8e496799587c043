"""Records (NodeName, PartitionName and DeviceName lines), and the complete configuration.

The most specific value wins: device, node, partition (through its Nodes), a line of its own, default. All values here
are typed and frozen.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from nodedaemon.config.choices import DeviceType
from nodedaemon.config.finding import Place
from nodedaemon.config.keys import Settings
from nodedaemon.config.kinds import Choice, FilePath, Numbers, Size, Text
from nodedaemon.config.spec import Key, Scope, key, keys_of, required_key
from nodedaemon.core.types import MIB

ALL_NODES = "ALL"


@dataclass(frozen=True)
class NodeFields:
    """`NodeName=gpu[01-04] Policy=srtf`: values for some nodes"""


@dataclass(frozen=True)
class PartitionFields:
    """`PartitionName=debug Nodes=gpu[01-04] Policy=fifo`: values for a Slurm partition"""

    nodes: str = key("Nodes", Text(), "").doc(
        "The nodes of the partition, or ALL. Required if the line sets keys that apply to nodes."
    )


@dataclass(frozen=True)
class DeviceFields:
    """`DeviceName=host0 Type=host Memory=2G Cores=0`: a device that cannot be detected, or values for a GPU"""

    type: DeviceType = required_key("Type", Choice(DeviceType)).doc(
        "cuda for a GPU, host for a slice of the node's memory."
    )
    nodes: str = key("Nodes", Text(), ALL_NODES).doc("The nodes that have this device.")
    memory_bytes: int = key("Memory", Size(64 * MIB), 0).doc(
        "For a host device, its size, taken from the node's memory. For a GPU, its size; with Uuid, Salus uses no more "
        "than this."
    )
    cores: tuple[int, ...] = key("Cores", Numbers(), ()).doc(
        "For a host device, the CPUs to which its sessions are pinned."
    )
    uuid: str = key("Uuid", Text(), "").doc("For a cuda device, the UUID of the GPU, as nvidia-smi -L prints it.")


FIELDS: Mapping[Scope, type] = {
    Scope.NODE: NodeFields,
    Scope.PARTITION: PartitionFields,
    Scope.DEVICE: DeviceFields,
}
GROUPS: Mapping[str, type] = {name: type(group) for name, group in vars(Settings()).items()}
KEYS: tuple[Key, ...] = tuple(key for group in GROUPS.values() for key in keys_of(group))
GROUP_OF_KEY: Mapping[str, str] = {key.name: name for name, group in GROUPS.items() for key in keys_of(group)}


@dataclass(frozen=True)
class Value:
    """A parsed value and the line that sets it."""

    key: Key
    value: Any
    place: Place


@dataclass(frozen=True)
class Record:
    """A NodeName, PartitionName or DeviceName line: its subject, its own fields and the keys that it overrides."""

    scope: Scope
    title: str
    place: Place
    # A node or device record may have many names, a partition record has one.
    names: tuple[str, ...]
    # None means all nodes.
    nodes: frozenset[str] | None
    fields: Mapping[str, Value]
    values: Mapping[str, Value]


@dataclass(frozen=True)
class ConfiguredDevice:
    """A device that a record names on one node, with the settings that apply to it."""

    name: str
    record: "Record"
    type: DeviceType
    memory_bytes: int
    cores: tuple[int, ...]
    uuid: str
    settings: Settings


@dataclass(frozen=True)
class Config:
    """A valid configuration. `settings` applies to the cluster; `for_node` and the other methods give the rest."""

    settings: Settings = field(default_factory=Settings)
    values: Mapping[str, Value] = field(default_factory=dict)
    records: tuple[Record, ...] = ()
    files: tuple[str, ...] = ()

    def for_node(self, node: str) -> Settings:
        """The settings of one node, with %n replaced in paths. A node without a record has those of the cluster."""
        return _fill_paths(_overlay(self.settings, self.values_for_node(node)), node)

    def for_partition(self, partition: str) -> Settings:
        """The settings for the jobs of one partition."""
        return _overlay(self.settings, self.values_for_partition(partition))

    def for_partitions(self, partitions: Collection[str]) -> list[Settings]:
        """The settings of each of these partitions; those of the cluster once, however many have no others."""
        own = {record.names for record in self.records if record.scope is Scope.PARTITION}
        names = dict.fromkeys(name if (name,) in own else "" for name in partitions or ("",))
        return [self.for_partition(name) for name in names]

    def devices_of(self, node: str) -> tuple[ConfiguredDevice, ...]:
        """The devices that records name for `node`, in the order of the file, without detected ones."""
        node_settings = self.for_node(node)
        return tuple(
            device
            for record in self.records_for(node)
            if record.scope is Scope.DEVICE
            for device in _devices(record, node_settings)
        )

    def for_device(self, node: str, uuid: str) -> Settings:
        """The settings of a detected device: those of the record with its UUID, else the node's."""
        return next(
            (device.settings for device in self.devices_of(node) if device.uuid == uuid and uuid), self.for_node(node)
        )

    def records_for(self, node: str) -> tuple[Record, ...]:
        """The records that apply to `node`, in the order of the file."""
        return self._records_by_node.get(node, self._records_by_node[ALL_NODES])

    @cached_property
    def _records_by_node(self) -> Mapping[str, tuple[Record, ...]]:
        # Without this index, checking n nodes with one line each would read n * n lines.
        positions: dict[str, list[int]] = {ALL_NODES: []}
        for position, record in enumerate(self.records):
            for node in (ALL_NODES,) if record.nodes is None else record.nodes:
                positions.setdefault(node, []).append(position)
        everywhere = positions[ALL_NODES]
        return {
            node: tuple(self.records[position] for position in sorted({*own, *everywhere}))
            for node, own in positions.items()
        }

    def node_names(self) -> tuple[str, ...]:
        """Every node that some record names, sorted."""
        return tuple(sorted({node for record in self.records for node in record.nodes or ()}))

    def values_for_node(self, node: str) -> Mapping[str, Value]:
        """The values that records set for `node`, by key name. `check` ensures that partitions do not conflict."""
        found: dict[str, Value] = {}
        # Partitions first, so that the record of the node overrides them.
        for scope in (Scope.PARTITION, Scope.NODE):
            for record in self.records_for(node):
                if record.scope is scope:
                    found |= {name: value for name, value in record.values.items() if Scope.NODE in value.key.scopes}
        return found

    def values_for_partition(self, partition: str) -> Mapping[str, Value]:
        """The values that the record of `partition` sets, by key name."""
        return next(
            (
                record.values
                for record in self.records
                if record.scope is Scope.PARTITION and record.names == (partition,)
            ),
            {},
        )


def _devices(record: Record, node_settings: Settings) -> tuple[ConfiguredDevice, ...]:
    own = DeviceFields(**{value.key.attribute: value.value for value in record.fields.values()})
    settings = _overlay(node_settings, record.values)
    values = (own.type, own.memory_bytes, own.cores, own.uuid, settings)
    return tuple(ConfiguredDevice(name, record, *values) for name in record.names)


def settings_of(values: Mapping[str, Value]) -> Settings:
    """The defaults, overridden by `values`. Paths that may differ by node keep %n and %c until `for_node`."""
    return _fill_paths(_overlay(Settings(), values), None)


def value_in(settings: Settings, key: Key) -> Any:
    """The value of one key."""
    return getattr(getattr(settings, GROUP_OF_KEY[key.name]), key.attribute)


def _overlay(settings: Settings, values: Mapping[str, Value]) -> Settings:
    return _with_values(settings, ((value.key, value.value) for value in values.values()))


def _fill_paths(settings: Settings, node: str | None) -> Settings:
    def filled(path: str) -> str:
        pieces = path.split("%%")
        return "%".join(piece.replace("%c", settings.cluster.name).replace("%n", node or "") for piece in pieces)

    return _with_values(
        settings,
        (
            (path_key, filled(value_in(settings, path_key)))
            for path_key in KEYS
            if isinstance(path_key.kind, FilePath) and path_key.kind.has_node == (node is not None)
        ),
    )


def _with_values(settings: Settings, values: Iterable[tuple[Key, Any]]) -> Settings:
    changes: dict[str, dict[str, Any]] = {}
    for changed_key, value in values:
        changes.setdefault(GROUP_OF_KEY[changed_key.name], {})[changed_key.attribute] = value
    return replace(settings, **{name: replace(getattr(settings, name), **change) for name, change in changes.items()})
