"""Carries requests: from commands over the control socket, from Slurm's hooks over the session socket."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from nodedaemon.drivers.process import PeerCredentials, peer_credentials
from nodedaemon.service.control.requests import Requests
from nodedaemon.service.sessions.connections import Connection
from nodedaemon.wire.envelope import REQUEST_BYTES_MAX, Failure, write_answer

#: A command that sends nothing for so long loses its connection.
IDLE_TIMEOUT_S = 300.0
CONNECTIONS_MAX = 128


class ControlSocket:
    def __init__(self, requests: Requests, log: Any) -> None:
        self._requests = requests
        self._log = log
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def listen(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_unix_server(self._serve, sock=listener, limit=REQUEST_BYTES_MAX)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def on_request(self, connection: Connection, packet: bytes) -> None:
        """Answer a hook's request, which came over the session socket."""
        connection.stop_timer()
        task = asyncio.get_running_loop().create_task(self._answer_hook(connection, packet))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer_hook(self, connection: Connection, packet: bytes) -> None:
        connection.answer(await self._answer(connection.credentials, packet, is_hook=True))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._writers) >= CONNECTIONS_MAX:
            writer.close()
            return
        self._writers.add(writer)
        try:
            credentials = peer_credentials(writer.get_extra_info("socket"))
            while True:
                async with asyncio.timeout(IDLE_TIMEOUT_S):
                    line = await reader.readline()
                if not line:
                    return
                writer.write(await self._answer(credentials, line, is_hook=False))
                await writer.drain()
        except (TimeoutError, ValueError, OSError, asyncio.IncompleteReadError):
            # The request was too long, too slow, or the caller is gone: only this connection ends.
            return
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, credentials: PeerCredentials, request: bytes, *, is_hook: bool) -> bytes:
        try:
            return await self._requests.answer(credentials, request, is_hook=is_hook)
        except Exception as error:
            # A bug in one verb is logged and answered; the daemon continues.
            self._log.exception("request failed")
            return write_answer(Failure(why=f"request failed: {type(error).__name__}: see the log of salusd"))
