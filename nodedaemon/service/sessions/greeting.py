"""New sessions: find the job of the process behind a HELLO, attach it to a session, and answer.

The daemon identifies the process through the kernel (SO_PEERCRED, pidfd, cgroup), never by what the process claims.
A HELLO that comes while old sessions are still being gathered waits for the end of that.
"""

from __future__ import annotations

import asyncio
from typing import Any

from nodedaemon.core.errors import PeerError, SalusError
from nodedaemon.drivers.process import Process
from nodedaemon.service.devices.directory import DeviceDirectory
from nodedaemon.service.jobs.identity import JobFinder
from nodedaemon.service.journal.state import SessionFacts
from nodedaemon.service.sessions.attach import SessionAttach
from nodedaemon.service.sessions.connections import Connection
from nodedaemon.service.sessions.losses import SessionLosses
from nodedaemon.service.sessions.recovery import Recovery
from nodedaemon.wire.messages import Fault, Hello, Notice, Reject

#: libsalus waits for a first answer 2 s, and three times this interval after each notice.
PATIENCE_INTERVAL_S = 20.0
PATIENCE_TEXT = "salusd is not ready for this session yet: it gathers old sessions or waits for memory"


class SessionGreeting:
    def __init__(
        self,
        attach: SessionAttach,
        finder: JobFinder,
        devices: DeviceDirectory,
        recovery: Recovery,
        losses: SessionLosses,
        log: Any,
    ) -> None:
        self._attach = attach
        self._finder = finder
        self._devices = devices
        self._recovery = recovery
        self._losses = losses
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()
        #: Connections without a WELCOME, with their session as soon as they have one.
        self._pending: dict[Connection, SessionFacts | None] = {}

    def on_hello(self, connection: Connection, hello: Hello) -> None:
        if connection.session is not None or connection in self._pending:
            raise PeerError("hello refused: this connection has said it already")
        connection.stop_timer()
        self._pending[connection] = None
        if self._recovery.is_gathering:
            self._ask_patience(connection)
        task = asyncio.get_running_loop().create_task(self._greet(connection, hello))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def on_fault(self, connection: Connection, fault: Fault) -> None:
        """The adaptor failed before its HELLO: there is no session yet, only a process to name in the log."""
        connection.stop_timer()
        peer = connection.credentials
        self._log.warning("job reports a fault of Salus", pid=peer.pid, uid=peer.uid, what=fault.text, is_off=True)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _greet(self, connection: Connection, hello: Hello) -> None:
        process: Process | None = None
        try:
            await self._recovery.wait_gathered()
            if connection.is_closed:
                raise PeerError("session refused: the process went away")
            process = Process.of_peer(connection.socket)
            job = await self._finder.find_job(process, connection.credentials.uid)
            if connection.is_closed:
                raise PeerError("session refused: the process went away")
            # No await from here on: of many hellos at once, each must see the sessions of those before it.
            facts = self._attach.choose(job, self._devices.of_job(job, hello.device), process, hello)
            connection.session = facts.session
            self._pending[connection] = facts
            self._attach.attach(facts, process, connection).watch_death(self._losses.on_death)
            self._ask_patience(connection)
        except SalusError as error:
            if process is not None:
                process.close()
            peer = connection.credentials
            self._log.info("hello refused", pid=peer.pid, uid=peer.uid, why=str(error))
            connection.send(Reject(str(error)))
            self._pending.pop(connection, None)

    def _ask_patience(self, connection: Connection) -> None:
        """Have a session wait for its WELCOME: libsalus gives up early on a daemon that does not answer at all."""
        facts = self._pending.get(connection)
        is_welcomed = facts is not None and facts.view.is_admitted
        if connection.is_closed or is_welcomed or connection not in self._pending:
            self._pending.pop(connection, None)
            return
        connection.send(Notice(PATIENCE_TEXT))
        asyncio.get_running_loop().call_later(PATIENCE_INTERVAL_S, self._ask_patience, connection)
