"""Which descriptors count as memory, and what a closing thread keeps. test_passed_descriptors.py tests the rest."""

import asyncio
import os
import select
import socket
import tempfile
import threading
import time
from pathlib import Path

import pytest

from nodedaemon.wire.guarded_socket import ExitCloser, guard, is_memory


def test_only_memory_and_devices_that_are_open_count_as_memory(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "file").write_text("x")
    ours, theirs = socket.socketpair()
    opened = {
        "memfd": os.memfd_create("x"),
        "sealed memfd": os.memfd_create("x", os.MFD_ALLOW_SEALING),
        "device": os.open("/dev/null", os.O_RDWR),
        "socket": ours.detach(),
        "file": os.open(tmp_path / "file", os.O_RDONLY),
        "fifo": os.open(fifo, os.O_RDONLY | os.O_NONBLOCK),
        "path of a device": os.open("/dev/null", os.O_PATH),
        "directory": os.open(tmp_path, os.O_RDONLY),
    }
    theirs.close()
    try:
        assert [name for name, one in opened.items() if is_memory(one)] == ["memfd", "sealed memfd", "device"]
    finally:
        for descriptor in opened.values():
            os.close(descriptor)


def test_a_program_can_be_started_while_a_thread_closes_a_socket():
    """To start a program, the loop blocks until its pipe has no writer. A copy of the pipe would block it forever."""

    async def start_program():
        ours, theirs = socket.socketpair()
        read_end, write_end = os.pipe()
        known = threading.enumerate()
        ExitCloser(asyncio.get_running_loop()).close([ours.detach()])
        (thread,) = (one for one in threading.enumerate() if one not in known)
        wait_for_own_table(thread)
        os.close(write_end)
        is_closed = bool(select.select([read_end], [], [], 10)[0])
        os.close(read_end)
        # The peer sees the end only when the thread has closed its copy too.
        assert await asyncio.get_running_loop().sock_recv(nonblocking(theirs), 1) == b""
        theirs.close()
        return is_closed

    assert asyncio.run(asyncio.wait_for(start_program(), 30)), "the thread keeps the pipe"


@pytest.mark.parametrize(
    ("kind", "message", "is_at_once"),
    [
        (socket.SOCK_STREAM, b"", True),
        (socket.SOCK_STREAM, b"x", False),
        # On a socket with packets, an empty one may be queued, with descriptors.
        (socket.SOCK_SEQPACKET, b"", False),
    ],
)
def test_only_a_stream_with_an_empty_queue_is_closed_at_once(kind, message, is_at_once):
    async def close():
        directory = tempfile.TemporaryDirectory()
        path = f"{directory.name}/s"
        with directory, socket.socket(socket.AF_UNIX, kind) as plain, socket.socket(socket.AF_UNIX, kind) as peer:
            plain.bind(path)
            plain.listen()
            listener = guard(plain)
            peer.connect(path)
            ours, _ = listener.accept()
            if message:
                peer.send(message)
            known = set(threading.enumerate())
            ours.close()
            is_thread_started = bool(set(threading.enumerate()) - known)
            await asyncio.wait_for(asyncio.get_running_loop().sock_recv(nonblocking(peer), 1), 10)
            listener.close()
        return not is_thread_started

    assert asyncio.run(close()) is is_at_once


def nonblocking(one):
    one.setblocking(False)
    return one


def wait_for_own_table(thread):
    """Wait until the thread's descriptors are not ours any more: a new one of ours is not there, or it has exited."""
    table = Path(f"/proc/self/task/{thread.native_id}/fd")
    deadline_s = time.monotonic() + 10
    while thread.is_alive() and time.monotonic() < deadline_s:
        probe = os.open("/dev/null", os.O_RDONLY)
        is_shared = (table / str(probe)).exists()
        os.close(probe)
        if not is_shared:
            return
