"""The frames of the session socket as values.

Written by tools/layouts.py from salus_wire.h: change the C side, then run `make layouts`.
Fields that are not named are 0 or empty, as in C. Nothing in a message is trusted.
"""

from __future__ import annotations

import enum
import struct
from typing import Annotated, cast

import msgspec

MAGIC = 0x534C4153
WIRE_VERSION = 1
TEXT_BYTES = 192
RULE_BYTES = 128
DEVICE_BYTES = 64
FRAME_BYTES_MAX = 512
FDS_MAX = 3
HEADER = struct.Struct("<IHHII")

U8 = Annotated[int, "B"]
U32 = Annotated[int, "I"]
U64 = Annotated[int, "Q"]
Pad6 = Annotated[int, "6x"]
Text = Annotated[str, "192s"]
Rule = Annotated[str, "128s"]
Device = Annotated[str, "64s"]


class MessageKind(enum.IntEnum):
    """The kind of a frame, as in its header."""

    HELLO = 1
    WELCOME = 2
    REJECT = 3
    MAP = 4
    UNMAP = 5
    UNMAPPED = 6
    WANT = 7
    RETURN = 8
    PROFILE_REPORT = 9
    OVERRUN = 10
    ALLOW = 11
    DENY = 12
    FAULT = 13
    NOTICE = 14
    BYE = 15
    STARTED = 16


class Framework(enum.IntEnum):
    """The framework whose allocator libsalus redirects."""

    NONE = 0
    TORCH = 1


class HelloFlag(enum.IntFlag):
    """Flags of HELLO."""

    RESUME = 1
    FORKED = 2
    UNGATED = 4


class WelcomeFlag(enum.IntFlag):
    """Flags of WELCOME."""

    TRAP = 1
    UNGATED = 2
    RELAY = 8


class OverrunKind(enum.IntEnum):
    """Which limit a session exceeds."""

    PERSISTENT = 1
    EPHEMERAL = 2
    STASH = 3


class Message(msgspec.Struct, frozen=True):
    """A frame. The tag of each class is the number of its kind."""

    @property
    def kind(self) -> MessageKind:
        return _KINDS[type(self)]


class Hello(Message, frozen=True, tag=1):
    """First frame of a session. With RESUME the gate page, the turn page and the lane (if mapped) are attached, in
    that order.
    """

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


class Welcome(Message, frozen=True, tag=2):
    """Accepts a HELLO. The gate page and the turn page are attached, in that order."""

    session: U64 = 0
    device_bytes: U64 = 0
    persistent_bytes: U64 = 0
    ephemeral_bytes: U64 = 0
    profile_persistent_bytes: U64 = 0
    profile_ephemeral_bytes: U64 = 0
    profile_model_hash: U64 = 0
    profile_input_hash: U64 = 0
    idle_release_ns: U64 = 0
    flags: U32 = 0
    slot: U32 = 0
    rule: Rule = ""


class Reject(Message, frozen=True, tag=3):
    """Rejects a HELLO. The job runs without Salus."""

    text: Text = ""


class Map(Message, frozen=True, tag=4):
    """Map the attached lane. It replaces a lane that is mapped already."""

    lane: U64 = 0
    epoch: U64 = 0
    lane_bytes: U64 = 0
    ephemeral_bytes: U64 = 0


class Unmap(Message, frozen=True, tag=5):
    """Stash survivors, unmap the lane, close its descriptor and answer UNMAPPED. Sent only to a session without a
    grant.
    """

    lane: U64 = 0
    epoch: U64 = 0


class Unmapped(Message, frozen=True, tag=6):
    """Answers UNMAP."""

    lane: U64 = 0
    epoch: U64 = 0
    persistent_bytes: U64 = 0


class Want(Message, frozen=True, tag=7):
    """The session waits in the gate and holds no grant."""

    last_epoch: U64 = 0


class Return(Message, frozen=True, tag=8):
    """The grant `epoch` is over. If `handed_over` is 1, the session has started `successor_epoch` directly."""

    epoch: U64 = 0
    successor_epoch: U64 = 0
    held_ns: U64 = 0
    iteration_count: U32 = 0
    contended_count: U32 = 0
    wants_next: U8 = 0
    handed_over: U8 = 0
    reserved: Pad6 = 0


class Started(Message, frozen=True, tag=16):
    """The offer `epoch` was started and its sender will send no RETURN. The sender's gate page holds the counts
    instead.
    """

    epoch: U64 = 0


class ProfileReport(Message, frozen=True, tag=9):
    """Running maxima over the whole session so far."""

    persistent_bytes: U64 = 0
    ephemeral_bytes: U64 = 0
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


class Overrun(Message, frozen=True, tag=10):
    """The session needs more than its caps. Both sizes are totals. ALLOW or DENY with the same serial answers it."""

    persistent_bytes: U64 = 0
    ephemeral_bytes: U64 = 0
    what: U32 = 0
    serial: U32 = 0


class Allow(Message, frozen=True, tag=11):
    """Raises the caps to these totals."""

    persistent_bytes: U64 = 0
    ephemeral_bytes: U64 = 0
    serial: U32 = 0
    reserved: U32 = 0


class Deny(Message, frozen=True, tag=12):
    """Keeps the caps as they are."""

    serial: U32 = 0
    reserved: U32 = 0
    text: Text = ""


class Fault(Message, frozen=True, tag=13):
    """Salus failed in the job. With `is_off` the job continues as if Salus were absent."""

    is_off: U32 = 0
    reserved: U32 = 0
    text: Text = ""


class Notice(Message, frozen=True, tag=14):
    """A line for the user. The adaptor decides where to show it, never on stdout."""

    text: Text = ""


class Bye(Message, frozen=True, tag=15):
    """The session ends normally."""

    iteration_count: U64 = 0


_KINDS = {message: MessageKind(cast(int, message.__struct_config__.tag)) for message in Message.__subclasses__()}
MESSAGE_TYPES = {kind: message for message, kind in _KINDS.items()}
