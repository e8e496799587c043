"""The properties of a key: name, type, default, description, and the records that may set it.

A group of keys is a frozen dataclass with one field per key. The shipped file, the manual and the checks are derived
from these fields.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Generic, TypeVar, cast

from nodedaemon.config.kinds import Kind

T = TypeVar("T")


#: The records that may set a key. The value of each is the key that starts such a record.
Scope = StrEnum("Scope", {"NODE": "NodeName", "PARTITION": "PartitionName", "DEVICE": "DeviceName"})


@dataclass(frozen=True)
class Key:
    """One key of salus.conf."""

    name: str
    kind: Kind[Any]
    # MISSING if a value is required.
    default: Any
    # Records that may set the key, in addition to a line of its own.
    scopes: tuple[Scope, ...] = ()
    # Whether a reload applies a change. Otherwise the daemon must be restarted.
    is_live: bool = True
    description: str = ""
    attribute: str = ""

    @property
    def is_required(self) -> bool:
        return self.default is MISSING

    def default_text(self) -> str:
        """The default as it is written in the file."""
        return "" if self.is_required else self.kind.write(self.default)


@dataclass(frozen=True)
class KeyDeclaration(Generic[T]):
    """A key without its description, which `doc` adds."""

    key: Key

    def doc(self, description: str) -> T:
        """A dataclass field for the key. For the type checker it is the default, as with `dataclasses.field`."""
        declared = replace(self.key, description=description)
        return cast(T, field(default=declared.default, metadata={"key": declared}))


def key(name: str, kind: Kind[T], default: T, *scopes: Scope, is_live: bool = True) -> KeyDeclaration[T]:
    """Declare a key: `lanes_max: int = key("MaxLanes", Count(1, 64), 4, NODE).doc("Lanes that ...")`."""
    return KeyDeclaration(Key(name, kind, default, scopes, is_live))


def required_key(name: str, kind: Kind[T]) -> KeyDeclaration[T]:
    """Declare a key of a record that has no default."""
    return KeyDeclaration(Key(name, kind, MISSING))


def keys_of(group: type) -> tuple[Key, ...]:
    """The keys of one dataclass, in order of definition."""
    return tuple(replace(item.metadata["key"], attribute=item.name) for item in fields(group))


def by_folded_name(keys: tuple[Key, ...]) -> Mapping[str, Key]:
    """Keys by their name in lower case, because the file is not case-sensitive."""
    return {item.name.casefold(): item for item in keys}
