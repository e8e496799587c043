"""Sockets that any local user may connect to. Nothing that a peer passes can block the event loop.

Theory of operation. A peer may attach descriptors to any message (SCM_RIGHTS), including sockets whose own queues hold
more descriptors. The kernel closes every descriptor that the receiver does not accept: when a read has no room for it,
and when a socket with unread messages is closed. That close runs in the receiver's thread. Closing a TCP socket with
SO_LINGER and unsent bytes takes as long as its peer likes, and releasing a large file takes seconds. Hence two rules:

1. `recv` peeks at a message before it reads it. A message with descriptors stays in the queue and raises
   `DescriptorsPassedError`. Only `receive_descriptors` accepts them, and only a caller that expects them calls it.
2. The event loop closes the last descriptor of a socket only if the socket is a stream with an empty queue. Otherwise a
   thread copies the descriptor, the event loop closes its own, and the exit of the thread closes the copy. A socket
   that is closed by an exit lingers in the background (socket(7)), and any other slow close delays only that thread.

The listener returns guarded sockets, so asyncio's servers and streams follow both rules unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import resource
import socket
import stat
import sys
import threading
from typing import Any, TypeVar

#: The most descriptors that one message can carry (SCM_MAX_FD). With a smaller buffer, the kernel would close the rest.
DESCRIPTORS_MAX = 253
#: Time until another attempt if no thread can be started.
RETRY_INTERVAL_S = 1.0

_CLONE_FILES = 0x400
_AT_EMPTY_PATH, _AT_STATX_DONT_SYNC, _STATX_TYPE = 0x1000, 0x4000, 0x1
_STATX_BYTES, _STATX_MODE = 256, slice(28, 30)
_libc = ctypes.CDLL(None, use_errno=True)


class DescriptorsPassedError(ConnectionAbortedError):
    """The next message carries descriptors; `packet` is its content. It has not been read."""

    def __init__(self, packet: bytes) -> None:
        super().__init__("the peer passes descriptors")
        self.packet = packet


class ExitCloser:
    """Closes descriptors of the event loop without waiting until the kernel has released them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[int] = []
        self._is_busy = False

    def close(self, descriptors: list[int]) -> None:
        """Close them soon. Each must be a socket, or have passed `is_memory`: for other files, any close may block."""
        self._waiting += descriptors
        if self._waiting and not self._is_busy:
            self._start()

    def _start(self) -> None:
        try:
            threading.Thread(target=self._hold, args=(self._waiting,), daemon=True).start()
        except RuntimeError:  # no thread can be started now
            self._loop.call_later(RETRY_INTERVAL_S, self.close, [])
            return
        self._waiting, self._is_busy = [], True

    def _hold(self, descriptors: list[int]) -> None:
        """In a thread: hold copies until the event loop has closed the originals, then exit."""
        is_copied = _libc.unshare(_CLONE_FILES) == 0
        if not is_copied:
            _close_all(descriptors)
        are_closed = threading.Event()
        with contextlib.suppress(RuntimeError):  # the loop is gone: the process exits and closes everything
            # First, because it writes to a descriptor of the loop.
            self._loop.call_soon_threadsafe(self._close, descriptors if is_copied else [], are_closed)
            if is_copied:
                # The loop may be starting a program right now. It reads a pipe until all writers have closed it, so a
                # copy of that pipe here would stop the loop, for which this thread waits.
                _close_others(descriptors)
            are_closed.wait()

    def _close(self, descriptors: list[int], are_closed: threading.Event) -> None:
        _close_all(descriptors)
        are_closed.set()
        self._is_busy = False
        self.close([])


class GuardedSocket(socket.socket):
    """Our end of a connection with an untrusted peer."""

    closer: ExitCloser

    def recv(self, bytes_max: int, flags: int = 0) -> bytes:
        packet, _, message_flags, _ = self.recvmsg(bytes_max, 0, flags | socket.MSG_PEEK)
        if message_flags & socket.MSG_CTRUNC:
            raise DescriptorsPassedError(packet)
        return super().recv(len(packet) or 1, flags)

    def receive_descriptors(self, bytes_max: int) -> tuple[bytes, list[int]]:
        """Read a message with all descriptors that it carries. The caller owns them."""
        packet, descriptors, _, _ = socket.recv_fds(self, bytes_max, DESCRIPTORS_MAX, socket.MSG_CMSG_CLOEXEC)
        return packet, list(descriptors)

    def close(self) -> None:
        if self.fileno() < 0:
            return
        if self._is_drained():
            super().close()
        else:
            self.closer.close([self.detach()])

    def _is_drained(self) -> bool:
        """Shut the connection down; True if nothing of the peer's is queued, so that a close is harmless and fast.

        Nothing can be queued after a shutdown. Only a stream tells an empty queue from an empty message.
        """
        try:
            self.shutdown(socket.SHUT_RDWR)
            packet, _, flags, _ = self.recvmsg(1, 0, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:  # the peer may be gone, and a listener has no queue of its own
            return False
        return self.type == socket.SOCK_STREAM and not packet and not flags & socket.MSG_CTRUNC


class GuardedListener(GuardedSocket):
    """A listening socket whose connections are guarded. It is guarded too: its backlog may hold unread messages."""

    def accept(self) -> tuple[GuardedSocket, Any]:
        peer, address = super().accept()
        return _guard(GuardedSocket, peer, self.closer), address


Guarded = TypeVar("Guarded", bound=GuardedSocket)


def guard(listener: socket.socket) -> GuardedListener:
    """Take over a listening socket, for the running event loop."""
    return _guard(GuardedListener, listener, ExitCloser(asyncio.get_running_loop()))


def _guard(kind: type[Guarded], plain: socket.socket, closer: ExitCloser) -> Guarded:
    guarded = kind(plain.family, plain.type, plain.proto, fileno=plain.detach())
    guarded.closer = closer
    guarded.settimeout(0)
    return guarded


def is_memory(descriptor: int) -> bool:
    """Whether this is a memfd or a character device, as lane memory is. Never blocks, whatever the file is.

    Only memfds have seals. The flags of statx prevent a request to a FUSE or network file system.
    """
    with contextlib.suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        return True
    found = ctypes.create_string_buffer(_STATX_BYTES)
    flags = _AT_EMPTY_PATH | _AT_STATX_DONT_SYNC
    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_PATH or _libc.statx(descriptor, b"", flags, _STATX_TYPE, found):
        return False
    return stat.S_ISCHR(int.from_bytes(found.raw[_STATX_MODE], sys.byteorder))


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _close_others(descriptors: list[int]) -> None:
    """Close every descriptor of this thread's own table except these."""
    start = 0
    # Not beyond the limit: without close_range(2), each number costs a system call.
    for descriptor in [*sorted(descriptors), resource.getrlimit(resource.RLIMIT_NOFILE)[0]]:
        os.closerange(start, descriptor)
        start = descriptor + 1
