"""Connections of the session socket: frames in, frames out, and limits per user.

A packet that begins with `{` is a request of Slurm's hooks; everything else is a frame. Reading and writing never
block. A peer that does not read loses its connection after `QUEUE_FRAMES_MAX` frames, a peer that sends more than its
user's rate loses it at once. Both cost the abuser its own connection only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nodedaemon.core.errors import PeerError
from nodedaemon.core.types import SessionId
from nodedaemon.drivers.process import PeerCredentials, peer_credentials
from nodedaemon.service.control.configuration import ActiveConfiguration
from nodedaemon.wire import framing
from nodedaemon.wire.envelope import PACKET_BYTES_MAX
from nodedaemon.wire.messages import FDS_MAX, FRAME_BYTES_MAX, Message
from nodedaemon.wire.rate import UserRate

QUEUE_FRAMES_MAX = 64
#: Frames read from one connection before it is the turn of the others.
BURST_COUNT = 16
#: Connections of a user beyond its sessions: for hooks, and to send a refused session the reason.
CONNECTIONS_SPARE = 16


@dataclass(slots=True)
class ConnectionCounters:
    accepted_count: int = 0
    refused_count: int = 0
    malformed_count: int = 0
    flooded_count: int = 0
    slow_count: int = 0


class Connection:
    """One peer. `session` is set once it has said hello."""

    def __init__(self, peer: socket.socket, server: Connections) -> None:
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
        except OSError:
            self._server.drop(self, "it is gone")

    def answer(self, payload: bytes) -> None:
        """The answer to a hook's request; the connection is closed after it."""
        with contextlib.suppress(OSError):
            self.socket.send(payload, socket.MSG_NOSIGNAL)
        self._server.drop(self, "")

    def _enqueue(self, message: Message, descriptors: Sequence[int]) -> None:
        if len(self._queue) >= QUEUE_FRAMES_MAX:
            self._server.counters.slow_count += 1
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
            self._server.drop(self, "it said nothing in time")

    def close(self) -> None:
        """Only the server calls this; others use `Connections.drop`."""
        self.is_closed = True
        self.stop_timer()
        for _, descriptors in self._queue:
            _close_all(descriptors)
        self._queue.clear()
        self.socket.close()


class FrameReceiver(Protocol):
    def on_message(self, connection: Connection, message: Message, descriptors: list[int]) -> None:
        """Handle a frame. `PeerError` closes the connection. Descriptors that stay in the list are closed."""


class RequestReceiver(Protocol):
    def on_request(self, connection: Connection, packet: bytes) -> None:
        """Answer a request of Slurm's hooks with `Connection.answer`."""


class LossReceiver(Protocol):
    def on_disconnect(self, session: SessionId | None, connection: object) -> None:
        """The connection is closed."""


class Connections:
    """The listening socket and all peers."""

    def __init__(
        self,
        frames: FrameReceiver,
        requests: RequestReceiver,
        losses: LossReceiver,
        configuration: ActiveConfiguration,
        log: Any,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.counters = ConnectionCounters()
        self._frames = frames
        self._requests = requests
        self._losses = losses
        self._configuration = configuration
        self._log = log
        self._listener: socket.socket | None = None
        self._peers: set[Connection] = set()
        self._by_uid: dict[int, int] = {}
        self._rate = UserRate(burst_s=2.0)

    def __len__(self) -> int:
        return len(self._peers)

    def listen(self, listener: socket.socket) -> None:
        listener.settimeout(0)
        self._listener = listener
        self.loop.add_reader(listener.fileno(), self._accept)

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
            self._log.info(
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
        uid = connection.credentials.uid
        self._by_uid[uid] -= 1
        if not self._by_uid[uid]:
            del self._by_uid[uid]
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
                self._log.error("connection not accepted", why=error.strerror)
                self._pause()
                return
            self._admit(peer)

    def _pause(self) -> None:
        assert self._listener is not None
        number = self._listener.fileno()
        self.loop.remove_reader(number)
        self.loop.call_later(0.2, lambda: self._listener and self.loop.add_reader(number, self._accept))

    def _admit(self, peer: socket.socket) -> None:
        peer.settimeout(0)
        connection = Connection(peer, self)
        uid, daemon = connection.credentials.uid, self._configuration.settings.daemon
        if self._by_uid.get(uid, 0) >= daemon.user_sessions_max + CONNECTIONS_SPARE:
            self.counters.refused_count += 1
            connection.close()
            return
        self.counters.accepted_count += 1
        self._by_uid[uid] = self._by_uid.get(uid, 0) + 1
        self._peers.add(connection)
        connection.start_timer(daemon.hello_timeout_ns / 1e9)
        self.loop.add_reader(peer.fileno(), self._read, connection)

    def _read(self, connection: Connection) -> None:
        for _ in range(BURST_COUNT):
            if connection.is_closed:
                return
            try:
                packet, descriptors, flags, _ = socket.recv_fds(
                    connection.socket, PACKET_BYTES_MAX + 1, FDS_MAX, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            except OSError:
                self.drop(connection, "it is gone")
                return
            if not packet:
                _close_all(descriptors)
                self.drop(connection, "")
                return
            self._take(connection, packet, descriptors, flags)

    def _take(self, connection: Connection, packet: bytes, descriptors: list[int], flags: int) -> None:
        uid = connection.credentials.uid
        if uid != 0 and not self._rate.allows(uid, self._configuration.settings.daemon.user_requests_per_s):
            _close_all(descriptors)
            self.counters.flooded_count += 1
            self.drop(connection, "its user sends too many requests")
            return
        if packet[0] == 0x7B and connection.session is None:
            _close_all(descriptors)
            self._requests.on_request(connection, packet)
            return
        try:
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or len(packet) > FRAME_BYTES_MAX:
                raise PeerError(f"read frame: {len(packet)} bytes: too long")
            message = framing.decode(packet)
        except PeerError as error:
            _close_all(descriptors)
            self.counters.malformed_count += 1
            self.drop(connection, str(error))
            return
        try:
            self._frames.on_message(connection, message, descriptors)
        except PeerError as error:
            self.drop(connection, str(error))
        finally:
            _close_all(descriptors)


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
    descriptors.clear()
