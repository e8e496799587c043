"""The page of metrics that a daemon serves to Prometheus, on the loopback address by default. No user can block it.

A limited number of connections is served at a time, each for one request and a limited time.
"""

from __future__ import annotations

import asyncio
import socket

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from nodedaemon.wire.logs import log

REQUEST_BYTES_MAX = 8192
REQUEST_TIMEOUT_S = 5.0
CONNECTIONS_MAX = 16


class MetricsPage:
    """Serves `/metrics` and `/healthz`; one request per connection."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._server: asyncio.Server | None = None
        self._count = 0

    async def open(self, address: str, port: int) -> None:
        """Serve at this address; port 0 serves nothing. If that fails, the daemon logs it and continues."""
        if not port:
            return
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
        except OSError as error:
            listener.close()
            log.error("metrics not served", port=port, why=error.strerror)
            return
        self._server = await asyncio.start_server(self._serve, sock=listener, limit=REQUEST_BYTES_MAX)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._count += 1
        try:
            if self._count > CONNECTIONS_MAX:
                return
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                await writer.drain()
        except (TimeoutError, OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            # Without this, the transport would keep the answer until a slow reader takes it.
            writer.transport.abort()
        finally:
            self._count -= 1
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].split()
        path = words[1] if len(words) == 3 and words[0] in (b"GET", b"HEAD") else b""
        if path.partition(b"?")[0] == b"/metrics":
            return _page(200, generate_latest(self._registry), CONTENT_TYPE_LATEST)
        if path == b"/healthz":
            return _page(200, b"ok\n", "text/plain")
        return _page(404, b"see /metrics\n", "text/plain")


def _page(status: int, body: bytes, kind: str) -> bytes:
    text = {200: "OK", 404: "Not Found"}[status]
    head = (
        f"HTTP/1.1 {status} {text}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
