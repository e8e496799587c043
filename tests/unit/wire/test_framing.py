"""A frame decodes to the message that was encoded. Anything but exactly one frame raises PeerError."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodedaemon.core.errors import PeerError
from nodedaemon.wire.framing import decode, encode, field_codes, receive, send
from nodedaemon.wire.messages import MESSAGE_TYPES, Deny, Map, Message, MessageKind, Notice, Want

_NUMBERS = {"B": 2**8 - 1, "I": 2**32 - 1, "Q": 2**64 - 1}


@st.composite
def messages(draw: st.DrawFn) -> Message:
    message = MESSAGE_TYPES[draw(st.sampled_from(list(MessageKind)))]
    values: list[int | str] = []
    for _, code in field_codes(message):
        if code.endswith("x"):
            values.append(0)
        elif code.endswith("s"):
            letters = st.characters(codec="utf-8", exclude_characters="\0")
            values.append(draw(st.text(letters, max_size=(int(code[:-1]) - 1) // 4)))
        else:
            values.append(draw(st.integers(0, _NUMBERS[code])))
    return message(*values)  # type: ignore[arg-type]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        yield left, right


@given(messages())
def test_a_message_survives_encoding_and_decoding(message: Message) -> None:
    assert decode(encode(message)) == message


@given(st.binary(max_size=600))
def test_random_bytes_raise_peer_error_and_nothing_else(noise: bytes) -> None:
    with pytest.raises(PeerError):
        decode(noise)


@pytest.mark.parametrize(
    ("offset", "value"), [(0, 0), (4, 99), (6, 200), (6, max(MessageKind) + 1), (6, MessageKind.MAP), (8, 1)], ids=str
)
def test_a_wrong_header_field_is_refused(offset: int, value: int) -> None:
    frame = bytearray(encode(Want(7)))
    frame[offset] = value
    with pytest.raises(PeerError):
        decode(bytes(frame))


def test_a_frame_with_an_extra_byte_is_refused() -> None:
    with pytest.raises(PeerError):
        decode(encode(Want(7)) + b"\0")


def test_a_long_text_is_cut_between_characters() -> None:
    message = decode(encode(Deny(1, text="ö" * 500)))
    assert isinstance(message, Deny)
    assert message.text == "ö" * 95


def test_descriptors_are_sent_with_their_frame(pair: tuple[socket.socket, socket.socket]) -> None:
    reader, writer = os.pipe()
    send(pair[0], Map(1, 2, 4096, 4096), [writer])
    os.close(writer)
    received = receive(pair[1])
    assert received is not None
    message, descriptors = received
    assert message == Map(1, 2, 4096, 4096)
    os.write(descriptors[0], b"x")
    assert os.read(reader, 1) == b"x"
    for descriptor in (reader, *descriptors):
        os.close(descriptor)


def test_descriptors_of_a_malformed_frame_are_closed(pair: tuple[socket.socket, socket.socket]) -> None:
    reader, writer = os.pipe()
    socket.send_fds(pair[0], [b"garbage"], [writer])
    os.close(writer)
    with pytest.raises(PeerError):
        receive(pair[1])
    assert os.read(reader, 1) == b"", "a descriptor of the pipe is still open"
    os.close(reader)


def test_a_closed_peer_reads_as_none(pair: tuple[socket.socket, socket.socket]) -> None:
    send(pair[0], Notice("last words"))
    pair[0].close()
    assert receive(pair[1]) == (Notice("last words"), [])
    assert receive(pair[1]) is None
