"""Answers the requests from Slurm's hooks and from commands: JSON in, JSON out. docs/protocol.md lists the verbs.

The kernel identifies the caller, and each verb checks what that caller may do. Nothing here decides: a request becomes
an event or reads the state.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol, TypeVar

import msgspec

from nodedaemon.core.errors import PeerError, RequestError, SalusError
from nodedaemon.core.types import JobClass, JobId
from nodedaemon.service.control.access import Caller
from nodedaemon.service.control.administration import Administration
from nodedaemon.service.control.configuration import ActiveConfiguration
from nodedaemon.service.control.status import StatusView
from nodedaemon.service.control.why import WhyView
from nodedaemon.service.devices.directory import DeviceDirectory
from nodedaemon.service.jobs.local_jobs import LocalJobs
from nodedaemon.service.jobs.registry import LOCAL_ACCOUNT, JobRegistry
from nodedaemon.service.jobs.slurm_jobs import SlurmJobs
from nodedaemon.service.sessions.recovery import Recovery
from nodedaemon.wire.control import AdminRequest, JobEnd, JobStart, RunStart, RunWait, TaskRequest, ViewRequest
from nodedaemon.wire.envelope import Failure, NotFoundError, NotPermittedError, read_request, write_answer
from nodedaemon.wire.logs import log
from nodedaemon.wire.rate import UserRate
from nodedaemon.wire.trust import PeerCredentials

#: A user may send the requests that are allowed in this many seconds at once.
BURST_S = 2.0
#: Expensive requests, each with the number of ordinary ones that it counts as. `why` tries changes on engine copies.
COSTS = {"status": 20, "why": 100, "run_start": 25}
T = TypeVar("T")


class RequestGroup(Protocol):
    """Answers the requests with one of its verbs."""

    @property
    def verbs(self) -> Iterable[str]: ...

    async def answer(self, caller: Caller, verb: str, fields: dict[str, Any]) -> Any: ...


class HookRequests:
    """Requests from the Prolog, the SPANK plugin and the Epilog, which run as root."""

    def __init__(self, slurm_jobs: SlurmJobs) -> None:
        self.verbs: dict[str, tuple[type[Any], Callable[[Any], Awaitable[dict[str, Any]]]]] = {
            "job_start": (JobStart, slurm_jobs.job_start),
            "task_env": (TaskRequest, slurm_jobs.task_env),
            "task_start": (TaskRequest, slurm_jobs.task_start),
            "task_exit": (TaskRequest, slurm_jobs.task_exit),
            "job_end": (JobEnd, slurm_jobs.job_end),
        }

    async def answer(self, caller: Caller, verb: str, fields: dict[str, Any]) -> dict[str, Any]:
        caller.require_owner(verb)
        kind, handle = self.verbs[verb]
        return await handle(_read(fields, kind))


class RunRequests:
    """Requests from `salus run`, if this node allows jobs without Slurm."""

    verbs = ("run_start", "run_wait")

    def __init__(self, local_jobs: LocalJobs, configuration: ActiveConfiguration) -> None:
        self._local_jobs = local_jobs
        self._configuration = configuration

    async def answer(self, caller: Caller, verb: str, fields: dict[str, Any]) -> dict[str, Any]:
        if not self._configuration.settings.daemon.local_jobs:
            raise NotPermittedError("run: jobs on this node must come through Slurm; set LocalJobs=yes to allow others")
        if verb == "run_start":
            request = _read(fields, RunStart)
            # No Slurm checks these: an account leads to the memory and the records of other users, class high to turns.
            if request.job_class == str(JobClass.HIGH):
                caller.require_admin("run: class high")
            if request.account not in ("", LOCAL_ACCOUNT):
                caller.require_admin("run: account")
            return await self._local_jobs.run_start(request, caller.credentials)
        return await self._local_jobs.run_wait(_read(fields, RunWait), caller.credentials.uid)


class AdminRequests:
    """Requests that change the daemon; for admins."""

    verbs = ("policy_set", "drain", "resume", "reload")

    def __init__(self, administration: Administration, devices: DeviceDirectory) -> None:
        self._administration = administration
        self._devices = devices

    async def answer(self, caller: Caller, verb: str, fields: dict[str, Any]) -> dict[str, Any]:
        caller.require_admin(verb)
        request = _read(fields, AdminRequest)
        name, policy, reason = str(request.device), request.policy, request.reason
        log.info("admin request", verb=verb, uid=caller.credentials.uid, device=name, policy=policy, reason=reason)
        match verb:
            case "policy_set":
                devices = [self._devices.find(name)] if name else list(self._devices)
                self._administration.set_policy(policy, devices)
                return {"ok": True, "devices": devices}
            case "reload":
                return {"ok": True, "changed": self._administration.reload()}
            case _ if not name:
                raise RequestError(f"{verb}: which device? give its index, name or uuid")
            case "drain":
                self._administration.drain(self._devices.find(name), reason)
            case _:
                self._administration.resume(self._devices.find(name))
        return {"ok": True}


class ViewRequests:
    """Requests that only read the state."""

    verbs = ("ping", "status", "why")

    def __init__(self, status: StatusView, why: WhyView, registry: JobRegistry) -> None:
        self._status = status
        self._why = why
        self._registry = registry

    async def answer(self, caller: Caller, verb: str, fields: dict[str, Any]) -> Any:
        job = str(_read(fields, ViewRequest).job)
        name = self._registry.full_name(job)
        if verb == "ping":
            return self._status.daemon.ping()
        if verb == "status":
            return self._status.status(caller, name or job)
        if name is None:
            raise NotFoundError(f"why: job {job}: not on this node; see salus status")
        return self._why.answer(JobId(name), caller)


class Requests:
    """Passes each request to the group of its verb and turns every `SalusError` into an answer."""

    def __init__(self, groups: Iterable[RequestGroup], recovery: Recovery, configuration: ActiveConfiguration) -> None:
        self._groups = {verb: group for group in groups for verb in group.verbs}
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
        caller = Caller.identify(credentials, self._configuration.settings)
        self._limit(caller, 1)
        message = read_request(request)
        verb, fields = message.verb, message.fields
        self._limit(caller, COSTS.get(verb, 0))
        # These two are answered at once. Any other request waits until the old sessions have been gathered.
        if verb not in ("ping", "status"):
            await self._recovery.wait_gathered()
        group = self._groups.get(verb)
        if is_hook and not isinstance(group, HookRequests):
            raise RequestError(f"request refused: verb {verb!r}: not a hook's verb; commands use the control socket")
        if group is None:
            raise RequestError(f"request refused: verb {verb!r}: unknown")
        return await group.answer(caller, verb, fields)

    def _limit(self, caller: Caller, cost: int) -> None:
        uid, per_s = caller.credentials.uid, self._configuration.settings.daemon.user_requests_per_s
        if cost and not caller.is_owner and not self._rate.allows(uid, per_s, cost):
            raise PeerError(f"request refused: uid {uid}: too many requests per second")


def _read(fields: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise RequestError(f"request refused: {kind.__name__}: {error}") from error
