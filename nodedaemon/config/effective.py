"""Every value in effect and its origin, for `salus config show`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nodedaemon.config.keys import Settings
from nodedaemon.config.records import FIELDS, KEYS, Config, Record, Value, value_in
from nodedaemon.config.spec import Key, by_folded_name, keys_of

DEFAULT_ORIGIN = "default"

_KEYS = by_folded_name((*(key for group in FIELDS.values() for key in keys_of(group)), *KEYS))


@dataclass(frozen=True)
class Effective:
    """One value: its record (empty for the cluster), its key, its text as in the file, its origin."""

    record: str
    key: str
    value: str
    origin: str


def values_in_effect(config: Config) -> Iterator[Effective]:
    """All keys of the cluster, then the values of each record."""
    yield from _all_keys(config.settings, config.values, "")
    for record in config.records:
        yield from _values_of(record, record.title)


def values_of_node(config: Config, node: str) -> Iterator[Effective]:
    """All keys as they apply to one node, then those of its devices."""
    yield from _all_keys(config.for_node(node), {**config.values, **config.values_for_node(node)}, f"NodeName={node}")
    for device in config.devices_of(node):
        yield from _values_of(device.record, f"DeviceName={device.name}")


def values_of_partition(config: Config, partition: str) -> Iterator[Effective]:
    """All keys as they apply to the jobs of one partition."""
    values = {**config.values, **config.values_for_partition(partition)}
    yield from _all_keys(config.for_partition(partition), values, f"PartitionName={partition}")


def changed_keys(old: Config, new: Config, node: str) -> list[str]:
    """The names of the keys whose value differs for `node` or for one of its devices, sorted."""
    before, after = (
        {(value.record, value.key, value.value) for value in values_of_node(config, node)} for config in (old, new)
    )
    return sorted({key for _, key, _ in before ^ after})


def find_key(name: str) -> Key | None:
    """The key of that name in any case, including keys that only records have."""
    return _KEYS.get(name.casefold())


def key_names() -> list[str]:
    """Every name that `find_key` finds."""
    return sorted(key.name for key in _KEYS.values())


def _all_keys(settings: Settings, values: Mapping[str, Value], record: str) -> Iterator[Effective]:
    for key in KEYS:
        origin = str(values[key.name].place) if key.name in values else DEFAULT_ORIGIN
        yield Effective(record, key.name, key.kind.write(value_in(settings, key)), origin)


def _values_of(record: Record, title: str) -> Iterator[Effective]:
    for value in (*record.fields.values(), *record.values.values()):
        yield Effective(title, value.key.name, value.key.kind.write(value.value), str(value.place))
