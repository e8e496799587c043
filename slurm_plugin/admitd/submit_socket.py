"""The unix socket of salus-admitd, over which job_submit.lua sends submissions.

Only SlurmUser and root can open it (mode 0600), and SO_PEERCRED confirms who did. Its connections do not count against
those of the TCP port, so nobody else can use them up.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from nodedaemon.wire.envelope import REQUEST_BYTES_MAX, Failure, Request, read_request, write_answer
from nodedaemon.wire.guarded_socket import guard
from nodedaemon.wire.listener import SOCKET_BACKLOG, open_socket
from nodedaemon.wire.logs import log, on_behalf_of
from nodedaemon.wire.trust import peer_credentials
from slurm_plugin.admitd.answers import answer_or_failure
from slurm_plugin.admitd.metrics import AdmissionMetrics

CONNECTIONS_MAX = 128
#: A client that does not read its answer for this long loses its connection.
SEND_TIMEOUT_S = 15.0


class SubmitSocket:
    """Serves the users in `uids`, with any number of requests per connection."""

    def __init__(
        self,
        answer: Callable[[Request], Awaitable[dict[str, Any] | Failure]],
        uids: frozenset[int],
        metrics: AdmissionMetrics,
    ) -> None:
        self._answer_request = answer
        self.uids = uids
        self._metrics = metrics
        self._tasks: set[asyncio.Task[Any]] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, path: Path, owner_uid: int | None) -> None:
        """Listen at `path`. As root, the socket is for `owner_uid`; otherwise it is for our own user."""
        owner_uid = owner_uid if os.geteuid() == 0 else None
        listener = open_socket(path, socket.SOCK_STREAM, mode=0o600, owner_uid=owner_uid)
        self._server = await asyncio.start_unix_server(
            self._serve, sock=guard(listener), limit=REQUEST_BYTES_MAX, backlog=SOCKET_BACKLOG
        )

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        uid = peer_credentials(writer.get_extra_info("socket")).uid
        with on_behalf_of(uid):
            why = "" if uid in self.uids else "neither root nor SlurmUser"
            if not why and len(self._tasks) >= CONNECTIONS_MAX:
                why = "there are too many connections"
            if why:
                self._metrics.refused_peers.inc()
                log.warning("connection refused", uid=uid, reason=why)
                writer.close()
                return
            self._tasks.add(task)
            try:
                while line := await reader.readline():
                    writer.write(write_answer(await answer_or_failure(self._answer(line))))
                    async with asyncio.timeout(SEND_TIMEOUT_S):
                        await writer.drain()
            except (TimeoutError, OSError, ValueError, asyncio.CancelledError) as error:
                log.debug("connection ended", reason=str(error))
                writer.transport.abort()
            finally:
                self._tasks.discard(task)
                writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any] | Failure:
        return await self._answer_request(read_request(line))
