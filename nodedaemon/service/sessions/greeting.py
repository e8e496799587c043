"""New sessions: finds the job of the process that sent a HELLO, attaches the process to a session, and answers.

The daemon identifies the process through the kernel (SO_PEERCRED, pidfd, cgroup), never by what the process claims.
A HELLO that arrives while old sessions are gathered waits until that is done.
"""

from __future__ import annotations

import asyncio

from nodedaemon.core.errors import PeerError, SalusError
from nodedaemon.drivers.process import Process
from nodedaemon.service.jobs.identity import JobFinder
from nodedaemon.service.journal.state import SessionFacts
from nodedaemon.service.sessions.attach import SessionAttach
from nodedaemon.service.sessions.connections import Connection
from nodedaemon.service.sessions.recovery import Recovery
from nodedaemon.service.tasks import BackgroundTasks
from nodedaemon.wire.logs import log
from nodedaemon.wire.messages import Fault, Hello, Notice, Reject
from nodedaemon.wire.rate import UserTurns

#: libsalus waits 2 s for the first answer, and after each NOTICE 60 s more: three times `PATIENCE_INTERVAL_S`.
PATIENCE_START_S = 1.0
PATIENCE_INTERVAL_S = 20.0
#: Processes of one user whose jobs are looked up at the same time. A lookup uses a thread and may run a Slurm command.
LOOKUPS_MAX = 2
PATIENCE_TEXT = "salusd is not ready for this session yet: it is gathering old sessions, or waiting for memory or Slurm"


class SessionGreeting:
    def __init__(self, attach: SessionAttach, finder: JobFinder, recovery: Recovery) -> None:
        self._attach = attach
        self._finder = finder
        self._recovery = recovery
        self.tasks = BackgroundTasks()
        self._lookups = UserTurns(LOOKUPS_MAX)
        #: Connections without a WELCOME, with their session as soon as they have one.
        self._pending: dict[Connection, SessionFacts | None] = {}

    def on_hello(self, connection: Connection, hello: Hello) -> None:
        if connection.session is not None or connection in self._pending:
            raise PeerError("hello refused: this connection has already sent one")
        connection.stop_timer()
        self._pending[connection] = None
        if self._recovery.is_gathering:
            self._ask_patience(connection)
        self.tasks.start(self._greet(connection, hello))

    def on_fault(self, connection: Connection, fault: Fault) -> None:
        """The adaptor failed before its HELLO: there is no session yet, only a process to name in the log."""
        peer = connection.credentials
        log.warning("job reports a fault of Salus", pid=peer.pid, uid=peer.uid, what=fault.text, is_off=True)

    async def _greet(self, connection: Connection, hello: Hello) -> None:
        process: Process | None = None
        try:
            await self._recovery.wait_gathered()
            patience = asyncio.get_running_loop().call_later(PATIENCE_START_S, self._ask_patience, connection)
            try:
                async with self._lookups.turn(connection.credentials.uid):
                    if connection.is_closed:
                        raise PeerError("session refused: the process is gone")
                    process = Process.of_peer(connection.socket)
                    job = await self._finder.find_job(process, connection.credentials.uid)
            finally:
                patience.cancel()
            if connection.is_closed:
                raise PeerError("session refused: the process is gone")
            # No await from here on: if several HELLOs arrive together, each must see the sessions of those before it.
            facts = self._attach.choose(job, process, hello)
            connection.session = facts.session
            self._pending[connection] = facts
            self._attach.attach(facts, process, connection)
            self._ask_patience(connection)
        except SalusError as error:
            if process is not None:
                process.close()
            peer = connection.credentials
            log.info("hello refused", pid=peer.pid, uid=peer.uid, why=str(error))
            connection.send(Reject(str(error)))
            self._pending.pop(connection, None)

    def _ask_patience(self, connection: Connection) -> None:
        """Ask a session to wait for its WELCOME, because libsalus soon gives up on a daemon that does not answer."""
        facts = self._pending.get(connection)
        is_welcomed = facts is not None and facts.view.is_admitted
        if connection.is_closed or is_welcomed or connection not in self._pending:
            self._pending.pop(connection, None)
            return
        connection.send(Notice(PATIENCE_TEXT))
        asyncio.get_running_loop().call_later(PATIENCE_INTERVAL_S, self._ask_patience, connection)
