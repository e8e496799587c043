"""The TCP port of salus-admitd, over which commands on login nodes ask questions.

Anybody who reaches the port can connect, so nothing is parsed and nobody is known until a credential has been checked.
Until then, a connection has little time and may be displaced: when all are in use, a new one takes the place of the
oldest unverified connection of the host that has the most. After that, limits per user apply. One connection carries
one request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from accounting.questions import QUESTION_VERBS
from accounting.viewer import Viewer
from nodedaemon.core.errors import RequestError
from nodedaemon.wire.envelope import REQUEST_BYTES_MAX, read_request, write_answer
from nodedaemon.wire.logs import log, on_behalf_of
from nodedaemon.wire.rate import UserTurns
from slurm_plugin.admitd.answers import answer_or_failure
from slurm_plugin.admitd.credentials import CREDENTIAL_BYTES_MAX, split
from slurm_plugin.admitd.metrics import AdmissionMetrics
from slurm_plugin.admitd.queries import Queries

CONNECTIONS_MAX = 256
#: asyncio accepts this many connections at a time before it serves submissions again.
BACKLOG = 64
#: Requests of one user that are being answered or wait for it.
USER_REQUESTS_MAX = 16
#: Reports of one user at a time. With one, nobody can use all workers, and nobody holds two large answers.
USER_REPORTS_MAX = 1
#: Times until the request has arrived, until its credential is checked, until the answer is made and until it is read.
LINE_TIMEOUT_S = 5.0
CHECK_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 15.0
SEND_TIMEOUT_S = 15.0
#: For the limits of the log, all clients are one user until they are verified.
UNVERIFIED_UID = -1


class Peers:
    """The open connections, by the tasks that serve them."""

    def __init__(self) -> None:
        self._hosts: dict[asyncio.Task[Any], str] = {}  # of those that are not verified, oldest first
        self._verified: set[asyncio.Task[Any]] = set()

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        return [*self._hosts, *self._verified]

    def add(self, task: asyncio.Task[Any], host: str) -> bool:
        """Whether there is room for one more, possibly by ending another one."""
        if len(self._hosts) + len(self._verified) >= CONNECTIONS_MAX:
            if not self._hosts:
                return False
            (largest, _), *_ = Counter(self._hosts.values()).most_common(1)
            displaced = next(task for task, host in self._hosts.items() if host == largest)
            del self._hosts[displaced]
            displaced.cancel()
        self._hosts[task] = host
        return True

    def verify(self, task: asyncio.Task[Any]) -> None:
        """This connection is no longer displaced by others."""
        if self._hosts.pop(task, None) is not None:
            self._verified.add(task)

    def remove(self, task: asyncio.Task[Any]) -> None:
        self._hosts.pop(task, None)
        self._verified.discard(task)


class QuestionPort:
    """`verify` returns the user who made a credential for a request, or raises."""

    def __init__(
        self, verify: Callable[[bytes, bytes], Awaitable[Viewer]], queries: Queries, metrics: AdmissionMetrics
    ) -> None:
        self._verify = verify
        self._queries = queries
        self._metrics = metrics
        self._peers = Peers()
        self._request_counts: Counter[int] = Counter()
        self._reports = UserTurns(USER_REPORTS_MAX)
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> None:
        limit = CREDENTIAL_BYTES_MAX + REQUEST_BYTES_MAX
        self._server = await asyncio.start_server(self._serve, host, port, limit=limit, backlog=BACKLOG)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = self._peers.tasks
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        host = str((writer.get_extra_info("peername") or ("",))[0])
        if not self._peers.add(task, host):
            self._metrics.refused_peers.inc()
            writer.transport.abort()
            return
        try:
            with on_behalf_of(UNVERIFIED_UID):
                await self._converse(task, reader, writer)
        except (TimeoutError, OSError, ValueError, asyncio.CancelledError) as error:
            # Without `abort`, the transport would keep an answer until a slow reader takes it.
            writer.transport.abort()
            log.debug("connection ended", uid=UNVERIFIED_UID, host=host, reason=str(error))
        finally:
            self._peers.remove(task)
            writer.close()

    async def _converse(
        self, task: asyncio.Task[Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        async with asyncio.timeout(LINE_TIMEOUT_S):
            line = await reader.readline()
        if not line.endswith(b"\n"):
            return
        # What the answer occupies stays counted until the client has read it.
        async with contextlib.AsyncExitStack() as held:
            answer = await answer_or_failure(self._answer(task, line, held))
            async with asyncio.timeout(SEND_TIMEOUT_S):
                writer.write(answer if isinstance(answer, bytes) else write_answer(answer))
                await writer.drain()
                writer.close()
                await writer.wait_closed()

    async def _answer(
        self, task: asyncio.Task[Any], line: bytes, held: contextlib.AsyncExitStack
    ) -> dict[str, Any] | bytes:
        credential, message = split(line)
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            viewer = await self._verify(credential, message)
        self._peers.verify(task)
        held.enter_context(on_behalf_of(viewer.uid))
        held.enter_context(self._counted(viewer.uid))
        request = read_request(message)
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            if request.verb in QUESTION_VERBS:
                await held.enter_async_context(self._reports.turn(viewer.uid))
            return await self._queries.answer(viewer, request)

    @contextlib.contextmanager
    def _counted(self, uid: int) -> Iterator[None]:
        if self._request_counts[uid] >= USER_REQUESTS_MAX:
            self._metrics.over_limit.labels("question").inc()
            raise RequestError("salus-admitd: too many requests at once; try again")
        self._request_counts[uid] += 1
        try:
            yield
        finally:
            self._request_counts[uid] -= 1
            if not self._request_counts[uid]:
                del self._request_counts[uid]
