"""Answers the requests of Slurm's hooks and of commands: JSON in, JSON out. docs/protocol.md lists the verbs.

The kernel identifies the caller, and each verb checks what that caller may do. Nothing here decides: a request becomes
an event, or a look at the state.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from nodedaemon.core.errors import PeerError, RequestError, SalusError
from nodedaemon.core.types import JobId
from nodedaemon.drivers.process import PeerCredentials
from nodedaemon.service.control.access import Caller
from nodedaemon.service.control.administration import Administration
from nodedaemon.service.control.configuration import ActiveConfiguration
from nodedaemon.service.control.status import StatusView
from nodedaemon.service.control.why import WhyView
from nodedaemon.service.devices.directory import DeviceDirectory
from nodedaemon.service.jobs.local_jobs import LocalJobs
from nodedaemon.service.jobs.registry import JobRegistry
from nodedaemon.service.jobs.slurm_jobs import SlurmJobs
from nodedaemon.service.sessions.recovery import Recovery
from nodedaemon.wire.control import JobEnd, JobStart, RunStart, TaskRequest
from nodedaemon.wire.envelope import Failure, NotFoundError, NotPermittedError, read_request, write_answer
from nodedaemon.wire.rate import UserRate

#: A user may send the requests of so many seconds at once.
BURST_S = 2.0
T = TypeVar("T")


class HookRequests:
    """Requests of Prolog, SPANK plugin and Epilog, which run as root."""

    def __init__(self, slurm_jobs: SlurmJobs) -> None:
        self._verbs: dict[str, tuple[type[Any], Callable[[Any], Awaitable[dict[str, Any]]]]] = {
            "job_start": (JobStart, slurm_jobs.job_start),
            "task_env": (TaskRequest, slurm_jobs.task_env),
            "task_start": (TaskRequest, slurm_jobs.task_start),
            "task_exit": (TaskRequest, slurm_jobs.task_exit),
            "job_end": (JobEnd, slurm_jobs.job_end),
        }

    def __contains__(self, verb: str) -> bool:
        return verb in self._verbs

    async def answer(self, caller: Caller, verb: str, fields: dict[str, Any]) -> dict[str, Any]:
        caller.require_owner(verb)
        kind, handle = self._verbs[verb]
        return await handle(_read(fields, kind))


class RunRequests:
    """Requests of `salus run`, if this node allows jobs without Slurm."""

    def __init__(self, local_jobs: LocalJobs, configuration: ActiveConfiguration) -> None:
        self._local_jobs = local_jobs
        self._configuration = configuration

    async def answer(self, caller: Caller, verb: str, fields: dict[str, Any]) -> dict[str, Any]:
        if not self._configuration.settings.daemon.local_jobs:
            raise NotPermittedError("run: jobs of this node come through Slurm; set LocalJobs=yes to allow others")
        if verb == "run_start":
            return await self._local_jobs.run_start(_read(fields, RunStart), caller.credentials)
        wait_ms = int(fields.get("wait_ms", 1000))
        return await self._local_jobs.run_wait(str(fields.get("job", "")), caller.credentials.uid, wait_ms)


class AdminRequests:
    """Requests that change the daemon; for admins."""

    def __init__(self, administration: Administration, devices: DeviceDirectory, log: Any) -> None:
        self._administration = administration
        self._devices = devices
        self._log = log

    def answer(self, caller: Caller, verb: str, fields: dict[str, Any]) -> dict[str, Any]:
        caller.require_admin(verb)
        self._log.info("admin request", verb=verb, uid=caller.credentials.uid, **fields)
        name = str(fields.get("device", ""))
        match verb:
            case "policy_set":
                devices = [self._devices.find(name)] if name else self._devices.ids
                self._administration.set_policy(str(fields.get("policy", "")), devices)
                return {"ok": True, "devices": devices}
            case "reload":
                return {"ok": True, "changed": self._administration.reload()}
            case _ if not name:
                raise RequestError(f"{verb}: which device? give its index, name or uuid")
            case "drain":
                self._administration.drain(self._devices.find(name), str(fields.get("reason", "")))
            case _:
                self._administration.resume(self._devices.find(name))
        return {"ok": True}


class ViewRequests:
    """Requests that only look."""

    def __init__(self, status: StatusView, why: WhyView, registry: JobRegistry, version: str) -> None:
        self._status = status
        self._why = why
        self._registry = registry
        self._version = version

    def answer(self, caller: Caller, verb: str, fields: dict[str, Any]) -> Any:
        job = str(fields.get("job", ""))
        name = self._registry.full_name(job)
        if verb == "ping":
            return {"ok": True, "version": self._version, "pid": os.getpid()}
        if verb == "status":
            return self._status.status(caller, name or job)
        if name is None:
            raise NotFoundError(f"why: job {job}: not on this node; see salus status")
        return self._why.answer(JobId(name), caller)


class Requests:
    """Gives each request to the group of its verb and turns every error into an answer."""

    def __init__(
        self,
        hooks: HookRequests,
        runs: RunRequests,
        admin: AdminRequests,
        views: ViewRequests,
        recovery: Recovery,
        configuration: ActiveConfiguration,
    ) -> None:
        self._hooks = hooks
        self._runs = runs
        self._admin = admin
        self._views = views
        self._recovery = recovery
        self._configuration = configuration
        self._rate = UserRate(BURST_S)

    async def answer(self, credentials: PeerCredentials, request: bytes, *, is_hook: bool) -> bytes:
        try:
            answer = await self._answer(credentials, request, is_hook=is_hook)
        except SalusError as error:
            answer = Failure.of(error)
        return write_answer(answer)

    async def _answer(self, credentials: PeerCredentials, request: bytes, *, is_hook: bool) -> Any:
        settings = self._configuration.settings
        caller = Caller.identify(credentials, settings)
        if not caller.is_owner and not self._rate.allows(credentials.uid, settings.daemon.user_requests_per_s):
            raise PeerError(f"request refused: uid {credentials.uid}: too many requests per second")
        message = read_request(request)
        verb, fields = message.verb, message.fields
        # A request that only looks is answered at once. Any other waits until the old sessions are back.
        if verb not in ("ping", "status"):
            await self._recovery.wait_gathered()
        if verb in self._hooks:
            return await self._hooks.answer(caller, verb, fields)
        if is_hook:
            raise RequestError(f"request refused: verb {verb!r}: not a hook's; commands use the control socket")
        match verb:
            case "ping" | "status" | "why":
                return self._views.answer(caller, verb, fields)
            case "run_start" | "run_wait":
                return await self._runs.answer(caller, verb, fields)
            case "policy_set" | "drain" | "resume" | "reload":
                return self._admin.answer(caller, verb, fields)
            case _:
                raise RequestError(f"request refused: verb {verb!r}: unknown")


def _read(fields: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise RequestError(f"request refused: {kind.__name__}: {error}") from error
