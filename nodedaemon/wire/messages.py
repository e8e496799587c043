"""The frames of the session socket as values. docs/protocol.md is the specification, salus_wire.h the same in C.

A message's fields follow the header in the order of declaration, without padding; tests/unit/wire compares each offset
with the compiler's. What a session says is untrusted: a decoded message is well-formed, not true.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass, fields
from typing import Annotated, ClassVar, get_type_hints

MAGIC = 0x534C4153
VERSION = 1
TEXT_BYTES = 192
RULE_BYTES = 128
DEVICE_BYTES = 64
FRAME_BYTES_MAX = 512
FDS_MAX = 3
HEADER = struct.Struct("<IHHII")

U8 = Annotated[int, "B"]
U32 = Annotated[int, "I"]
U64 = Annotated[int, "Q"]
Text = Annotated[str, f"{TEXT_BYTES}s"]
Rule = Annotated[str, f"{RULE_BYTES}s"]
Device = Annotated[str, f"{DEVICE_BYTES}s"]
Pad6 = Annotated[int, "6x"]


class Kind(enum.IntEnum):
    HELLO = 1
    WELCOME = 2
    REFUSE = 3
    LANE = 4
    UNMAP = 5
    UNMAPPED = 6
    WANT = 7
    RETURN = 8
    PROFILE = 9
    OVERRUN = 10
    ALLOW = 11
    DENY = 12
    FAULT = 13
    NOTICE = 14
    BYE = 15
    STARTED = 16


class Framework(enum.IntEnum):
    NONE = 0
    TORCH = 1


class HelloFlag(enum.IntFlag):
    RESUME = 1
    FORKED = 2
    UNGATED = 4


class WelcomeFlag(enum.IntFlag):
    TRAP = 1
    UNGATED = 2
    RELAY = 8


class OverrunKind(enum.IntEnum):
    PERSISTENT = 1
    EPHEMERAL = 2
    STASH = 3


@dataclass(frozen=True, slots=True)
class Hello:
    """First frame of a session. With RESUME gate page, turn page and lane (if mapped) are attached, in that order."""

    kind: ClassVar[Kind] = Kind.HELLO
    session: U64 = 0
    lane: U64 = 0
    lane_epoch: U64 = 0
    grant_epoch: U64 = 0
    model_hash: U64 = 0
    input_hash: U64 = 0
    declared_persistent_bytes: U64 = 0
    declared_ephemeral_bytes: U64 = 0
    pid: U32 = 0
    flags: U32 = 0
    framework: U32 = 0
    reserved: U32 = 0
    device: Device = ""


@dataclass(frozen=True, slots=True)
class Welcome:
    """Accepts a HELLO; gate page and turn page are attached, in that order."""

    kind: ClassVar[Kind] = Kind.WELCOME
    session: U64
    device_bytes: U64
    persistent_bytes: U64
    ephemeral_bytes: U64
    profile_persistent_bytes: U64 = 0
    profile_ephemeral_bytes: U64 = 0
    profile_model_hash: U64 = 0
    profile_input_hash: U64 = 0
    idle_release_ns: U64 = 0
    flags: U32 = 0
    slot: U32 = 0
    rule: Rule = ""


@dataclass(frozen=True, slots=True)
class Refuse:
    kind: ClassVar[Kind] = Kind.REFUSE
    text: Text


@dataclass(frozen=True, slots=True)
class Lane:
    """Map this lane; its memfd is attached. A lane that is mapped already is replaced."""

    kind: ClassVar[Kind] = Kind.LANE
    lane: U64
    epoch: U64
    lane_bytes: U64
    ephemeral_bytes: U64


@dataclass(frozen=True, slots=True)
class Unmap:
    """Stash survivors, unmap, drop the descriptor, answer UNMAPPED. Only to a session without a grant."""

    kind: ClassVar[Kind] = Kind.UNMAP
    lane: U64
    epoch: U64


@dataclass(frozen=True, slots=True)
class Unmapped:
    kind: ClassVar[Kind] = Kind.UNMAPPED
    lane: U64
    epoch: U64
    persistent_bytes: U64 = 0


@dataclass(frozen=True, slots=True)
class Want:
    """The session waits in the gate and holds no grant."""

    kind: ClassVar[Kind] = Kind.WANT
    last_epoch: U64 = 0


@dataclass(frozen=True, slots=True)
class Return:
    """The grant `epoch` is over. `successor_epoch` says which offer was started directly where `handed_over` is 1."""

    kind: ClassVar[Kind] = Kind.RETURN
    epoch: U64
    successor_epoch: U64 = 0
    held_ns: U64 = 0
    iteration_count: U32 = 0
    contended_count: U32 = 0
    wants_next: U8 = 0
    handed_over: U8 = 0
    reserved: Pad6 = 0


@dataclass(frozen=True, slots=True)
class Started:
    """The offer `epoch` was started, and who made it sends no RETURN: its page says what that would have said."""

    kind: ClassVar[Kind] = Kind.STARTED
    epoch: U64


@dataclass(frozen=True, slots=True)
class Profile:
    """Running maxima over the whole session so far."""

    kind: ClassVar[Kind] = Kind.PROFILE
    persistent_bytes: U64
    ephemeral_bytes: U64
    live_persistent_bytes: U64 = 0
    live_ephemeral_bytes: U64 = 0
    iteration_ns: U64 = 0
    iteration_count: U64 = 0
    promotion_count: U64 = 0
    spill_count: U64 = 0
    spill_bytes_max: U64 = 0
    model_hash: U64 = 0
    input_hash: U64 = 0
    rule: Rule = ""


@dataclass(frozen=True, slots=True)
class Overrun:
    """The session wants more than its caps: both figures are totals. Answered by ALLOW or DENY of that serial."""

    kind: ClassVar[Kind] = Kind.OVERRUN
    persistent_bytes: U64
    ephemeral_bytes: U64
    what: U32
    serial: U32 = 0


@dataclass(frozen=True, slots=True)
class Allow:
    kind: ClassVar[Kind] = Kind.ALLOW
    persistent_bytes: U64
    ephemeral_bytes: U64
    serial: U32 = 0
    reserved: U32 = 0


@dataclass(frozen=True, slots=True)
class Deny:
    kind: ClassVar[Kind] = Kind.DENY
    serial: U32
    reserved: U32 = 0
    text: Text = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something of ours failed in the job; with `is_off` it runs from now on as if Salus were absent."""

    kind: ClassVar[Kind] = Kind.FAULT
    is_off: U32
    reserved: U32 = 0
    text: Text = ""


@dataclass(frozen=True, slots=True)
class Notice:
    """A line for the user; the adaptor decides where to show it, never on stdout."""

    kind: ClassVar[Kind] = Kind.NOTICE
    text: Text


@dataclass(frozen=True, slots=True)
class Bye:
    kind: ClassVar[Kind] = Kind.BYE
    iteration_count: U64 = 0


Message = (
    Hello
    | Welcome
    | Refuse
    | Lane
    | Unmap
    | Unmapped
    | Want
    | Return
    | Started
    | Profile
    | Overrun
    | Allow
    | Deny
    | Fault
    | Notice
    | Bye
)

MESSAGE_TYPES: dict[Kind, type[Message]] = {
    message.kind: message
    for message in (
        Hello,
        Welcome,
        Refuse,
        Lane,
        Unmap,
        Unmapped,
        Want,
        Return,
        Started,
        Profile,
        Overrun,
        Allow,
        Deny,
        Fault,
        Notice,
        Bye,
    )
}


def field_codes(message: type[Message]) -> list[tuple[str, str]]:
    """Name and struct code of each field after the header, in order."""
    hints = get_type_hints(message, include_extras=True)
    return [(field.name, hints[field.name].__metadata__[0]) for field in fields(message)]


def layout(message: type[Message]) -> struct.Struct:
    """The whole frame, header included."""
    return struct.Struct(HEADER.format + "".join(code for _, code in field_codes(message)))
