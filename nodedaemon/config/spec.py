"""The properties of a key: name, type, default, description, and the records that may set it.

A group of keys is a frozen dataclass whose fields are made by `key`. The shipped file, the manual and the checks derive
from it.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from typing import Any, TypeVar, cast

from nodedaemon.config.kinds import Kind

T = TypeVar("T")


class Scope(StrEnum):
    """The records that may set a key. The value of each is the key that starts such a record."""

    NODE = "NodeName"
    PARTITION = "PartitionName"
    DEVICE = "DeviceName"


@dataclass(frozen=True)
class Key:
    """One key of salus.conf."""

    name: str
    kind: Kind[Any]
    why: str
    # Records that may set the key, in addition to a line of its own.
    scopes: tuple[Scope, ...]
    # Whether a reload applies a change. Otherwise the daemon must be restarted.
    is_live: bool
    attribute: str = ""
    default: Any = None
    is_required: bool = False

    def default_text(self) -> str:
        """The default as it is written in the file."""
        return "" if self.is_required else self.kind.write(self.default)


def key(
    name: str,
    kind: Kind[T],
    default: T,
    why: str,
    *scopes: Scope,
    is_live: bool = True,
) -> T:
    """A dataclass field for the key `name`. For the type checker it is the default, as with `dataclasses.field`."""
    spec = Key(name=name, kind=kind, why=why, scopes=scopes, is_live=is_live)
    # typeshed declares that `field` returns T.
    return field(default=default, metadata={"key": spec})


def required_key(name: str, kind: Kind[T], why: str) -> T:
    """A field of a record that has no default."""
    spec = Key(name=name, kind=kind, why=why, scopes=(), is_live=True, is_required=True)
    return cast(T, field(metadata={"key": spec}))


def keys_of(group: type) -> tuple[Key, ...]:
    """The keys of one dataclass, in order of definition."""
    found = []
    for item in fields(group):
        spec: Key | None = item.metadata.get("key")
        if spec is not None:
            default = None if item.default is MISSING else item.default
            found.append(
                Key(spec.name, spec.kind, spec.why, spec.scopes, spec.is_live, item.name, default, spec.is_required)
            )
    return tuple(found)


def by_folded_name(keys: tuple[Key, ...]) -> Mapping[str, Key]:
    """Keys by their name in lower case, because the file is not case-sensitive."""
    return {item.name.casefold(): item for item in keys}
