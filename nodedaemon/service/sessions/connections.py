"""Connections on the session socket: frames in, frames out, and limits per user.

A packet that begins with `{` is a request of Slurm's hooks; everything else is a frame. Reading, writing and closing
never block. A peer that does not read loses its connection after `QUEUE_FRAMES_MAX` frames; a peer that sends more than
its user's rate loses it at once. Neither affects other connections.

The only frame that may carry descriptors is a HELLO with RESUME, and they must be memory. Any other
message with descriptors closes its connection unread.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import resource
import socket
import termios
import threading
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from nodedaemon.core.errors import PeerError
from nodedaemon.core.types import SessionId
from nodedaemon.service.control.configuration import ActiveConfiguration
from nodedaemon.wire import framing
from nodedaemon.wire.envelope import PACKET_BYTES_MAX
from nodedaemon.wire.guarded_socket import DescriptorsPassedError, GuardedListener, GuardedSocket, guard, is_memory
from nodedaemon.wire.logs import log, on_behalf_of
from nodedaemon.wire.messages import FDS_MAX, FRAME_BYTES_MAX, Hello, HelloFlag, Message
from nodedaemon.wire.rate import UserConnections, UserRate
from nodedaemon.wire.trust import PeerCredentials, peer_credentials

QUEUE_FRAMES_MAX = 64
#: Frames read from one connection, or connections accepted, before the daemon turns to other work.
BURST_COUNT = 16
#: Connections of a user beyond its sessions: for hooks, and to send a refused session the reason.
CONNECTIONS_SPARE = 16
#: A session needs about five descriptors. This leaves descriptors for other uses.
DESCRIPTORS_PER_CONNECTION = 8
#: The peer has closed the connection. Its last packets may not have been read yet.
GONE = (BrokenPipeError, ConnectionResetError)


class Connection:
    """One peer. `session` is set after its HELLO."""

    def __init__(self, peer: GuardedSocket, server: Connections) -> None:
        self.socket = peer
        self.credentials: PeerCredentials = peer_credentials(peer)
        self.session: SessionId | None = None
        self.is_closed = False
        self._server = server
        self._queue: deque[tuple[Message, list[int]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        if self.is_closed:
            return
        if self._queue:
            self._enqueue(message, descriptors)
            return
        try:
            framing.send(self.socket, message, descriptors)
        except BlockingIOError:
            self._enqueue(message, descriptors)
            if not self.is_closed:
                self._server.loop.add_writer(self.socket.fileno(), self._flush)
        except GONE:
            pass  # the server reads its last packets and then drops the connection
        except OSError:
            self._server.drop(self, "it is gone")

    def has_unread(self) -> bool:
        if self.is_closed:
            return False
        unread_bytes = fcntl.ioctl(self.socket, termios.TIOCOUTQ, bytes(4))
        return bool(self._queue) or any(unread_bytes)

    def answer(self, payload: bytes) -> None:
        """The answer to a hook's request; the connection is closed after it."""
        with contextlib.suppress(OSError):
            self.socket.send(payload, socket.MSG_NOSIGNAL)
        self._server.drop(self, "")

    def _enqueue(self, message: Message, descriptors: Sequence[int]) -> None:
        if len(self._queue) >= QUEUE_FRAMES_MAX:
            self._server.drop(self, "it does not read what it is sent")
            return
        self._queue.append((message, [os.dup(descriptor) for descriptor in descriptors]))

    def _flush(self) -> None:
        while self._queue:
            message, descriptors = self._queue[0]
            try:
                framing.send(self.socket, message, descriptors)
            except BlockingIOError:
                return
            except GONE:
                pass  # as above
            except OSError:
                self._server.drop(self, "it is gone")
                return
            self._queue.popleft()
            _close_all(descriptors)
        self._server.loop.remove_writer(self.socket.fileno())

    def start_timer(self, seconds: float) -> None:
        self._timer = self._server.loop.call_later(seconds, self._time_out)

    def stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        if self.session is None:
            self._server.drop(self, "it sent nothing in time")

    def close(self) -> None:
        """Only the server calls this; others use `Connections.drop`."""
        self.is_closed = True
        self.stop_timer()
        for _, descriptors in self._queue:
            _close_all(descriptors)
        self._queue.clear()
        self.socket.close()


class FrameReceiver(Protocol):
    def is_expected(self, uid: int) -> bool:
        """Whether a job of this user was placed on the node, so that its processes must be accepted."""

    def on_message(self, connection: Connection, message: Message, descriptors: list[int]) -> None:
        """Handle a frame. `PeerError` closes the connection. Duplicate a descriptor to keep it."""


class RequestReceiver(Protocol):
    def on_request(self, connection: Connection, packet: bytes) -> None:
        """Answer a request of Slurm's hooks with `Connection.answer`."""


class LossReceiver(Protocol):
    def on_disconnect(self, session: SessionId | None, connection: object) -> None:
        """The connection is closed."""


class Connections:
    """The listening socket and all peers."""

    def __init__(
        self, frames: FrameReceiver, requests: RequestReceiver, losses: LossReceiver, configuration: ActiveConfiguration
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._frames = frames
        self._requests = requests
        self._losses = losses
        self._configuration = configuration
        self._listener: GuardedListener | None = None
        self._peers: set[Connection] = set()
        self._counts = UserConnections(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // DESCRIPTORS_PER_CONNECTION)
        self._rate = UserRate(burst_s=2.0)
        #: Users whose descriptors are being closed in a thread, which may take forever.
        self._closing_uids: set[int] = set()

    def listen(self, listener: socket.socket) -> None:
        self._listener = guard(listener)
        self.loop.add_reader(self._listener.fileno(), self._accept)

    def close(self) -> None:
        if self._listener is not None:
            self.loop.remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None
        for connection in list(self._peers):
            self._remove(connection)

    def drop(self, connection: Connection, why: str) -> None:
        """Close one connection and report the loss to its session."""
        if connection not in self._peers:
            return
        if why:
            log.info(
                "connection closed",
                session=connection.session,
                pid=connection.credentials.pid,
                uid=connection.credentials.uid,
                why=why,
            )
        self._remove(connection)
        self._losses.on_disconnect(connection.session, connection)

    def _remove(self, connection: Connection) -> None:
        self._peers.discard(connection)
        number = connection.socket.fileno()
        if number >= 0:
            self.loop.remove_reader(number)
            self.loop.remove_writer(number)
        self._counts.release(connection.credentials.uid)
        connection.close()

    def _accept(self) -> None:
        assert self._listener is not None
        for _ in range(BURST_COUNT):
            try:
                peer, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # No descriptors left: peers in the backlog are accepted when others have disconnected.
                log.error("connection not accepted", why=error.strerror)
                self._pause()
                return
            self._admit(peer)

    def _pause(self) -> None:
        assert self._listener is not None
        number = self._listener.fileno()
        self.loop.remove_reader(number)
        self.loop.call_later(0.2, lambda: self._listener and self.loop.add_reader(number, self._accept))

    def _admit(self, peer: GuardedSocket) -> None:
        connection = Connection(peer, self)
        uid, daemon = connection.credentials.uid, self._configuration.settings.daemon
        user_max = daemon.user_sessions_max + CONNECTIONS_SPARE
        refusal = self._counts.admit(uid, user_max, is_preferred=self._frames.is_expected(uid))
        if refusal:
            log.info("connection refused", pid=connection.credentials.pid, uid=uid, why=refusal)
            connection.close()
            return
        self._peers.add(connection)
        connection.start_timer(daemon.hello_timeout_ns / 1e9)
        self.loop.add_reader(peer.fileno(), self._read, connection)

    def _read(self, connection: Connection) -> None:
        for _ in range(BURST_COUNT):
            if connection.is_closed:
                return
            try:
                packet = connection.socket.recv(PACKET_BYTES_MAX + 1)
            except BlockingIOError:
                return
            except DescriptorsPassedError as passed:
                self._receive_descriptors(connection, passed.packet)
                continue
            except ConnectionResetError:
                continue  # the peer closed before it had read everything; its own last packets follow
            except OSError:
                self.drop(connection, "it is gone")
                return
            if not packet:
                self.drop(connection, "")
                return
            self._receive(connection, packet, [])

    def _receive_descriptors(self, connection: Connection, packet: bytes) -> None:
        """Accept the descriptors of a HELLO that may carry some, if all of them are memory."""
        uid = connection.credentials.uid
        try:
            hello = framing.decode(packet)
            if not isinstance(hello, Hello) or not hello.flags & HelloFlag.RESUME or connection.session is not None:
                raise PeerError("descriptors refused: only a session that resumes may pass any")
            if uid in self._closing_uids:
                raise PeerError("descriptors refused: earlier ones of this user are not closed yet")
        except PeerError as error:
            self.drop(connection, str(error))
            return
        packet, descriptors = connection.socket.receive_descriptors(PACKET_BYTES_MAX + 1)
        if not all(map(is_memory, descriptors)):
            # `ExitCloser` is no help here: a file system may block even a close that is not the last one.
            self._closing_uids.add(uid)
            threading.Thread(target=self._close_foreign, args=(uid, descriptors), daemon=True).start()
            self.drop(connection, "descriptors refused: they are not memory of a session")
            return
        if len(descriptors) <= FDS_MAX:
            self._receive(connection, packet, descriptors)
        else:
            self.drop(connection, f"descriptors refused: {len(descriptors)}, at most {FDS_MAX}")
        connection.socket.closer.close(descriptors)

    def _close_foreign(self, uid: int, descriptors: list[int]) -> None:
        _close_all(descriptors)
        with contextlib.suppress(RuntimeError):  # the daemon has ended meanwhile
            self.loop.call_soon_threadsafe(self._closing_uids.discard, uid)

    def _receive(self, connection: Connection, packet: bytes, descriptors: list[int]) -> None:
        uid = connection.credentials.uid
        if uid != 0 and not self._rate.allows(uid, self._configuration.settings.daemon.user_requests_per_s):
            self.drop(connection, "its user sends too many requests")
            return
        with on_behalf_of(uid):
            if packet[0] == 0x7B and connection.session is None:
                self._requests.on_request(connection, packet)
                return
            try:
                if len(packet) > FRAME_BYTES_MAX:
                    raise PeerError(f"read frame: {len(packet)} bytes: too long")
                self._frames.on_message(connection, framing.decode(packet), descriptors)
            except PeerError as error:
                self.drop(connection, str(error))


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
    descriptors.clear()
