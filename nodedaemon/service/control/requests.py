"""The control socket and the hooks' requests: JSON in, JSON out, each verb checked against who asks.

docs/protocol.md has the verbs. Hooks (root only) come over the session socket, commands over their own. Who asks is the
kernel's word. Nothing here decides; a verb becomes an event, or a look at the state.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from nodedaemon.core.errors import PeerError, RequestError, SalusError
from nodedaemon.core.types import JobId
from nodedaemon.drivers.process import PeerCredentials, peer_credentials
from nodedaemon.service.control.configuration import Rules
from nodedaemon.service.control.status import StatusView, Viewer
from nodedaemon.service.control.systemd import Notifier
from nodedaemon.service.jobs.registry import JobBook, JobEnd, JobStart, RunStart, TaskRequest, user_name
from nodedaemon.service.journal.dispatcher import Dispatcher
from nodedaemon.service.sessions.connections import Connection, RateLimit
from nodedaemon.wire.control import REQUEST_BYTES_MAX, Failure

#: A command that says nothing for so long loses its connection.
IDLE_TIMEOUT_S = 300.0
CONNECTIONS_MAX = 128


class NotPermittedError(RequestError):
    """The asker may not do this."""


class UnknownThingError(RequestError):
    """What the asker named is not here."""


@dataclass(slots=True)
class Asker:
    credentials: PeerCredentials
    is_admin: bool
    is_operator: bool

    @property
    def viewer(self) -> Viewer:
        return Viewer(self.credentials.uid, self.is_operator or self.is_admin)

    def require_admin(self, verb: str) -> None:
        if not self.is_admin:
            raise NotPermittedError(f"{verb}: uid {self.credentials.uid}: admins only; see Admins in salus.conf")


class Control:
    """Answers requests. What changes the daemon itself is handed in as callables."""

    def __init__(
        self,
        jobs: JobBook,
        view: StatusView,
        dispatcher: Dispatcher,
        rules: Rules,
        notifier: Notifier,
        *,
        wait_gathered: Callable[[], Awaitable[None]],
        node_status: Callable[[Viewer, str], Any],
        version: str,
        log: Any,
    ) -> None:
        self._jobs = jobs
        self._view = view
        self._dispatcher = dispatcher
        self._rules = rules
        self._notifier = notifier
        self._wait_gathered = wait_gathered
        self._node_status = node_status
        self._version = version
        self._log = log
        self._rates: dict[int, RateLimit] = {}
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

    # The session socket's requests

    def on_request(self, connection: Connection, packet: bytes) -> None:
        connection.stop_timer()
        task = asyncio.get_running_loop().create_task(self._answer_hook(connection, packet))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer_hook(self, connection: Connection, packet: bytes) -> None:
        answer = await self._answer(connection.credentials, packet, is_hook=True)
        connection.answer(answer)

    # The control socket

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._writers) >= CONNECTIONS_MAX:
            writer.close()
            return
        self._writers.add(writer)
        try:
            peer = writer.get_extra_info("socket")
            credentials = peer_credentials(peer)
            while True:
                async with asyncio.timeout(IDLE_TIMEOUT_S):
                    line = await reader.readline()
                if not line:
                    return
                writer.write(await self._answer(credentials, line, is_hook=False) + b"\n")
                await writer.drain()
        except (TimeoutError, ValueError, OSError, asyncio.IncompleteReadError):
            # Too long, too slow, or gone: that connection ends, nothing else.
            return
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, credentials: PeerCredentials, request: bytes, *, is_hook: bool) -> bytes:
        try:
            self._take_turn(credentials.uid)
            answer = await self._handle(self._asker(credentials), request, is_hook=is_hook)
        except NotPermittedError as error:
            answer = Failure(why=str(error), kind="not_permitted")
        except UnknownThingError as error:
            answer = Failure(why=str(error), kind="not_found")
        except (RequestError, msgspec.DecodeError) as error:
            answer = Failure(why=str(error), kind="usage")
        except SalusError as error:
            answer = Failure(why=str(error))
        except Exception as error:
            # A connection's handler: a bug in one verb is logged and answered, the daemon goes on.
            self._log.exception("request failed")
            answer = Failure(why=f"request failed: {type(error).__name__}: see the log of salusd")
        return msgspec.json.encode(answer)

    def _take_turn(self, uid: int) -> None:
        if uid in (0, os.geteuid()):
            return
        rate = self._rates.setdefault(
            uid, RateLimit(self._rules.settings.daemon.user_requests_per_s, self._dispatcher.clock)
        )
        if not rate.take():
            raise PeerError(f"request refused: uid {uid}: too many requests a second")

    def _asker(self, credentials: PeerCredentials) -> Asker:
        is_owner = credentials.uid in (0, os.geteuid())
        name = user_name(credentials.uid)
        cluster = self._rules.settings.cluster
        return Asker(credentials, is_owner or name in cluster.admins, is_owner or name in cluster.operators)

    async def _handle(self, asker: Asker, request: bytes, *, is_hook: bool) -> Any:
        fields = msgspec.json.decode(request, type=dict[str, Any])
        verb = str(fields.pop("verb", ""))
        # Who only looks is answered at once; who changes something waits till the old sessions are back.
        if verb not in ("ping", "status"):
            await self._wait_gathered()
        if verb in ("job_start", "task_env", "task_start", "task_exit", "job_end"):
            return await self._handle_hook(asker, verb, fields)
        if is_hook:
            raise RequestError(f"request refused: verb {verb!r}: not one of a hook; commands use the control socket")
        return await self._handle_command(asker, verb, fields)

    async def _handle_hook(self, asker: Asker, verb: str, fields: dict[str, Any]) -> Any:
        if asker.credentials.uid not in (0, os.geteuid()):
            raise NotPermittedError(f"{verb}: uid {asker.credentials.uid}: for Slurm's hooks, which run as root")
        match verb:
            case "job_start":
                return await self._jobs.job_start(_read(fields, JobStart))
            case "task_env":
                return await self._jobs.task_env(_read(fields, TaskRequest))
            case "task_start":
                return await self._jobs.task_start(_read(fields, TaskRequest))
            case "task_exit":
                return await self._jobs.task_exit(_read(fields, TaskRequest))
            case _:
                return await self._jobs.job_end(_read(fields, JobEnd))

    async def _handle_command(self, asker: Asker, verb: str, fields: dict[str, Any]) -> Any:
        match verb:
            case "ping":
                return {"ok": True, "version": self._version, "pid": os.getpid()}
            case "status":
                return self._node_status(asker.viewer, str(fields.get("job", "")))
            case "why":
                return self._why(asker, str(fields.get("job", "")))
            case "run_start" | "run_wait":
                return await self._handle_run(asker, verb, fields)
            case "policy_set" | "drain" | "resume" | "reload":
                asker.require_admin(verb)
                self._log.info("admin", verb=verb, uid=asker.credentials.uid, **fields)
                return self._handle_admin(verb, fields)
            case _:
                raise RequestError(f"request refused: verb {verb!r}: unknown")

    async def _handle_run(self, asker: Asker, verb: str, fields: dict[str, Any]) -> Any:
        if not self._rules.settings.daemon.local_jobs:
            raise NotPermittedError("run: jobs of this node come through Slurm; set LocalJobs=yes to allow others")
        if verb == "run_wait":
            wait_ms = int(fields.get("wait_ms", 1000))
            return await self._jobs.run_wait(str(fields.get("job", "")), asker.credentials.uid, wait_ms)
        return await self._jobs.run_start(_read(fields, RunStart), asker.credentials)

    def _handle_admin(self, verb: str, fields: dict[str, Any]) -> Any:
        name = str(fields.get("device", ""))
        devices = [self._jobs.find_device(name)] if name else self._jobs.device_ids()
        match verb:
            case "policy_set":
                self._rules.set_policy(self._dispatcher, str(fields.get("policy", "")), devices)
                return {"ok": True, "devices": devices}
            case "reload":
                return {"ok": True, "changed": self._rules.reload(self._dispatcher, self._notifier)}
            case _:
                if not name:
                    raise RequestError(f"{verb}: which device? give its index, name or uuid")
                if verb == "drain":
                    self._rules.drain(self._dispatcher, devices[0], str(fields.get("reason", "")))
                else:
                    self._rules.resume(self._dispatcher, devices[0])
                return {"ok": True}

    def _why(self, asker: Asker, name: str) -> Any:
        known = self._jobs.known_name(name)
        if known is None:
            raise UnknownThingError(f"why: job {name}: not on this node; see salus status")
        try:
            return self._view.why(JobId(known), asker.viewer)
        except RequestError as error:
            raise UnknownThingError(str(error)) from error


T = TypeVar("T")


def _read(fields: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise RequestError(f"request refused: {kind.__name__}: {error}") from error
