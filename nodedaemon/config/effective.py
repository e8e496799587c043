"""Every value in effect and its origin, for `salus config show`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nodedaemon.config.keys import Settings
from nodedaemon.config.records import FIELDS, GROUP_OF_KEY, KEYS, Config, Value
from nodedaemon.config.spec import Key, by_folded_name, keys_of

DEFAULT_ORIGIN = "default"


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
        for value in (*record.fields.values(), *record.values.values()):
            yield Effective(record.title, value.key.name, value.key.kind.write(value.value), str(value.place))


def values_of_node(config: Config, node: str) -> Iterator[Effective]:
    """All keys as they apply to one node, then those of its devices."""
    yield from _all_keys(config.for_node(node), {**config.values, **config.values_for_node(node)}, f"NodeName={node}")
    for device in config.devices_of(node):
        for value in (*device.record.fields.values(), *device.record.values.values()):
            text = value.key.kind.write(value.value)
            yield Effective(f"DeviceName={device.name}", value.key.name, text, str(value.place))


def values_of_partition(config: Config, partition: str) -> Iterator[Effective]:
    """All keys as they apply to the jobs of one partition."""
    values = {**config.values, **config.values_for_partition(partition)}
    yield from _all_keys(config.for_partition(partition), values, f"PartitionName={partition}")


def changed_keys(old: Config, new: Config, node: str) -> tuple[Key, ...]:
    """The keys whose value differs for `node` or one of its devices. Keys that are not live need a restart."""
    before, after = (
        {(value.record, value.key): value.value for value in values_of_node(config, node)} for config in (old, new)
    )
    names = {
        name for record, name in before.keys() | after.keys() if before.get((record, name)) != after.get((record, name))
    }
    return tuple(key for name in sorted(names) if (key := find_key(name)) is not None)


def find_key(name: str) -> Key | None:
    """The key of that name in any case, including keys that only records have."""
    return by_folded_name((*(key for group in FIELDS.values() for key in keys_of(group)), *KEYS)).get(name.casefold())


def key_names() -> tuple[str, ...]:
    """Every name that `find_key` finds."""
    return tuple(sorted({key.name for group in FIELDS.values() for key in keys_of(group)} | {key.name for key in KEYS}))


def _all_keys(settings: Settings, values: Mapping[str, Value], record: str) -> Iterator[Effective]:
    for key in KEYS:
        value = getattr(getattr(settings, GROUP_OF_KEY[key.name]), key.attribute)
        origin = str(values[key.name].place) if key.name in values else DEFAULT_ORIGIN
        yield Effective(record, key.name, key.kind.write(value), origin)
