"""Messages to bytes and back, and both over a SEQPACKET socket with descriptors attached.

One frame is one packet of the exact size of its kind; anything else is the peer's fault. Descriptors that come with a
frame belong to the caller of `receive`, also when the message is refused later; with a malformed frame they are closed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence

from nodedaemon.core.errors import PeerError
from nodedaemon.wire.messages import (
    FDS_MAX,
    FRAME_BYTES_MAX,
    HEADER,
    MAGIC,
    MESSAGE_TYPES,
    VERSION,
    Kind,
    Message,
    field_codes,
    layout,
)

_CODES = {kind: [(name, code) for name, code in field_codes(message)] for kind, message in MESSAGE_TYPES.items()}
_LAYOUTS = {kind: layout(message) for kind, message in MESSAGE_TYPES.items()}


def frame_bytes(kind: Kind) -> int:
    return _LAYOUTS[kind].size


def encode(message: Message) -> bytes:
    """Texts longer than their field are cut: a reason that loses its tail is better than no answer."""
    packer = _LAYOUTS[message.kind]
    values: list[int | bytes] = []
    for name, code in _CODES[message.kind]:
        if code.endswith("x"):
            continue
        value = getattr(message, name)
        values.append(_cut(value, int(code[:-1]) - 1) if code.endswith("s") else value)
    return packer.pack(MAGIC, VERSION, message.kind, packer.size, 0, *values)


def decode(frame: bytes) -> Message:
    """The message in `frame`; raises PeerError for everything that is not exactly one frame of our version."""
    if len(frame) < HEADER.size:
        raise PeerError(f"read frame: {len(frame)} bytes: shorter than a header; the peer does not speak Salus")
    magic, version, kind_number, size, _ = HEADER.unpack_from(frame)
    if magic != MAGIC:
        raise PeerError(f"read frame: magic {magic:#x}: the peer does not speak Salus")
    if version != VERSION:
        raise PeerError(f"read frame: version {version}: this side speaks {VERSION}; restart the older one")
    try:
        kind = Kind(kind_number)
    except ValueError:
        raise PeerError(f"read frame: kind {kind_number}: unknown") from None
    if size != len(frame) or size != _LAYOUTS[kind].size:
        raise PeerError(f"read frame: {kind.name}: {len(frame)} bytes, said {size}, must be {_LAYOUTS[kind].size}")
    values = iter(_LAYOUTS[kind].unpack(frame)[5:])
    texts_and_numbers = [
        0 if code.endswith("x") else _text(next(values)) if code.endswith("s") else next(values)
        for _, code in _CODES[kind]
    ]
    build: Callable[..., Message] = MESSAGE_TYPES[kind]
    return build(*texts_and_numbers)


def send(connection: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """Send one frame; the descriptors stay the caller's. Raises OSError as the socket does."""
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
            raise PeerError(f"read frame: cut at {len(frame)} bytes or {len(descriptors)} descriptors")
        return decode(frame), descriptors
    except PeerError:
        _close(descriptors)
        raise


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _cut(text: str, byte_count: int) -> bytes:
    return text.encode()[:byte_count].decode(errors="ignore").encode()


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode(errors="replace")
