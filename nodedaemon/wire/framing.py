"""Encode and decode messages, and exchange them with descriptors over a SEQPACKET socket.

One packet holds one frame of the exact size of its kind; anything else raises PeerError. The caller of `receive` owns
the descriptors of a well-formed frame; those of a malformed frame are closed here.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from typing import get_type_hints

from nodedaemon.core.errors import PeerError
from nodedaemon.wire.messages import (
    FDS_MAX,
    FRAME_BYTES_MAX,
    HEADER,
    MAGIC,
    MESSAGE_TYPES,
    WIRE_VERSION,
    Message,
    MessageKind,
)


def field_codes(message: type[Message]) -> list[tuple[str, str]]:
    """Name and struct code of each field after the header, in order."""
    hints = get_type_hints(message, include_extras=True)
    return [(name, hints[name].__metadata__[0]) for name in message.__struct_fields__]


_CODES = {kind: field_codes(message) for kind, message in MESSAGE_TYPES.items()}
_LAYOUTS = {kind: struct.Struct(HEADER.format + "".join(code for _, code in _CODES[kind])) for kind in _CODES}


def encode(message: Message) -> bytes:
    """The frame of a message. A text that is too long for its field is truncated."""
    kind = message.kind
    values = [
        _truncate(getattr(message, name), int(code[:-1]) - 1) if code.endswith("s") else getattr(message, name)
        for name, code in _CODES[kind]
        if not code.endswith("x")
    ]
    return _LAYOUTS[kind].pack(MAGIC, WIRE_VERSION, kind, _LAYOUTS[kind].size, 0, *values)


def decode(frame: bytes) -> Message:
    """The message in `frame`. Raises PeerError unless `frame` is exactly one frame of our version."""
    if len(frame) < HEADER.size:
        raise PeerError(f"read frame: {len(frame)} bytes: shorter than a header; the peer does not speak Salus")
    magic, version, kind_number, size, _ = HEADER.unpack_from(frame)
    if magic != MAGIC:
        raise PeerError(f"read frame: magic {magic:#x}: the peer does not speak Salus")
    if version != WIRE_VERSION:
        raise PeerError(f"read frame: version {version}: this side uses version {WIRE_VERSION}; restart the older one")
    try:
        kind = MessageKind(kind_number)
    except ValueError:
        raise PeerError(f"read frame: kind {kind_number}: unknown") from None
    if size != len(frame) or size != _LAYOUTS[kind].size:
        raise PeerError(
            f"read frame: {kind.name}: {len(frame)} bytes, header says {size}, must be {_LAYOUTS[kind].size}"
        )
    values = iter(_LAYOUTS[kind].unpack(frame)[5:])
    texts_and_numbers = [
        0 if code.endswith("x") else _text(next(values)) if code.endswith("s") else next(values)
        for _, code in _CODES[kind]
    ]
    return MESSAGE_TYPES[kind](*texts_and_numbers)


def send(connection: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """Send one frame. The caller keeps the descriptors. Raises OSError as the socket does."""
    if len(descriptors) > FDS_MAX:
        raise ValueError(f"send frame: {message.kind.name}: {len(descriptors)} descriptors, at most {FDS_MAX}")
    frame = encode(message)
    if descriptors:
        socket.send_fds(connection, [frame], list(descriptors), socket.MSG_NOSIGNAL)
    else:
        connection.send(frame, socket.MSG_NOSIGNAL)


def receive(connection: socket.socket) -> tuple[Message, list[int]] | None:
    """The next message and its descriptors (close-on-exec), or None when the peer has closed."""
    frame, descriptors, flags, _ = socket.recv_fds(connection, FRAME_BYTES_MAX + 1, FDS_MAX, socket.MSG_CMSG_CLOEXEC)
    try:
        if not frame:
            _close(descriptors)
            return None
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise PeerError(f"read frame: truncated at {len(frame)} bytes or {len(descriptors)} descriptors")
        return decode(frame), descriptors
    except PeerError:
        _close(descriptors)
        raise


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _truncate(text: str, byte_count: int) -> bytes:
    return text.encode()[:byte_count].decode(errors="ignore").encode()


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode(errors="replace")
