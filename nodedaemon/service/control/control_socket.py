"""Receives and answers requests: those of commands on the control socket, those of hooks on the session socket."""

from __future__ import annotations

import asyncio
import socket

from nodedaemon.service.control.access import Caller
from nodedaemon.service.control.configuration import ActiveConfiguration
from nodedaemon.service.control.requests import Requests
from nodedaemon.service.sessions.connections import Connection
from nodedaemon.service.tasks import BackgroundTasks
from nodedaemon.wire.envelope import REQUEST_BYTES_MAX, Failure, write_answer
from nodedaemon.wire.guarded_socket import guard
from nodedaemon.wire.listener import SOCKET_BACKLOG
from nodedaemon.wire.logs import log, on_behalf_of
from nodedaemon.wire.rate import UserConnections
from nodedaemon.wire.trust import PeerCredentials, peer_credentials

#: A command that sends no further request for this long, or does not read an answer, loses its connection.
IDLE_TIMEOUT_S = 300.0
#: Connections of all users except root, and of one user. A waiting `salus run` uses one.
CONNECTIONS_MAX = 512
USER_CONNECTIONS_MAX = 64


class ControlSocket:
    """Root is always served. Admins are still served when ordinary users have used up their share of connections."""

    def __init__(self, requests: Requests, configuration: ActiveConfiguration) -> None:
        self._requests = requests
        self._configuration = configuration
        self._counts = UserConnections(CONNECTIONS_MAX)
        self.tasks = BackgroundTasks()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def listen(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_unix_server(
            self._serve, sock=guard(listener), limit=REQUEST_BYTES_MAX, backlog=SOCKET_BACKLOG
        )

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.close()

    def on_request(self, connection: Connection, packet: bytes) -> None:
        """Answer a hook's request, which came over the session socket."""
        connection.stop_timer()
        self.tasks.start(self._answer_hook(connection, packet))

    async def _answer_hook(self, connection: Connection, packet: bytes) -> None:
        connection.answer(await self._answer(connection.credentials, packet, is_hook=True))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        credentials = peer_credentials(writer.get_extra_info("socket"))
        with on_behalf_of(credentials.uid):
            is_admin = Caller.identify(credentials, self._configuration.settings).is_admin
            refusal = self._counts.admit(credentials.uid, USER_CONNECTIONS_MAX, is_preferred=is_admin)
            if refusal:
                log.info("connection refused", pid=credentials.pid, uid=credentials.uid, why=refusal)
                writer.close()
                return
            self._writers.add(writer)
            try:
                await self._serve_requests(credentials, reader, writer)
            except (TimeoutError, ValueError, OSError, asyncio.IncompleteReadError) as error:
                # The request was too long, too slow, or the caller is gone: only this connection ends.
                log.debug("connection closed", pid=credentials.pid, uid=credentials.uid, why=str(error))
                # Without this, the transport would keep answers until a slow reader takes them.
                writer.transport.abort()
            finally:
                self._writers.discard(writer)
                self._counts.release(credentials.uid)
                writer.close()

    async def _serve_requests(
        self, credentials: PeerCredentials, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        timeout_s = self._configuration.settings.daemon.hello_timeout_ns / 1e9
        while True:
            async with asyncio.timeout(timeout_s):
                line = await reader.readline()
            if not line:
                return
            timeout_s = IDLE_TIMEOUT_S
            writer.write(await self._answer(credentials, line, is_hook=False))
            async with asyncio.timeout(timeout_s):
                await writer.drain()

    async def _answer(self, credentials: PeerCredentials, request: bytes, *, is_hook: bool) -> bytes:
        try:
            return await self._requests.answer(credentials, request, is_hook=is_hook)
        except Exception as error:
            # A bug in one verb is logged and answered; the daemon continues.
            log.exception("request failed")
            return write_answer(Failure(why=f"request failed: {type(error).__name__}: see the log of salusd"))
