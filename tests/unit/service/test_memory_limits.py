"""The memory limit of a cgroup is the memory of the job's sessions; a driver without limits is asked once."""

from types import SimpleNamespace
from typing import Any, cast

from msgspec.structs import replace

from nodedaemon.core import commands
from nodedaemon.core.engine import Engine
from nodedaemon.core.errors import OperatingError
from nodedaemon.core.state.views import SessionView
from nodedaemon.core.types import DeviceId, JobId, SessionId
from nodedaemon.drivers.device import Capabilities
from nodedaemon.service.devices.memory_limits import MemoryLimits
from nodedaemon.service.journal.dispatcher import Dispatcher
from nodedaemon.service.journal.state import JobFacts, ProcessFacts, SessionFacts, ShellState

GPU, OTHER = DeviceId("GPU-1"), DeviceId("GPU-2")
GROUP = "/system.slice/slurmstepd.scope/job_7"


class Gpu:
    """A device that remembers its limits."""

    capabilities = Capabilities(limits_memory=True)

    def __init__(self, *, is_able: bool = True, is_hung: bool = False) -> None:
        self.limits: dict[str, int | None] = {}
        self.asked_count = 0
        self._is_able, self._is_hung = is_able, is_hung

    def limit_group(self, cgroup: str, limit_bytes: int | None) -> bool:
        self.asked_count += 1
        if self._is_hung:
            raise OperatingError("limit memory: nvml: no answer within 2 s")
        self.limits[cgroup] = limit_bytes
        return self._is_able


def make(gpu: Gpu, group: str = GROUP) -> tuple[MemoryLimits, JobFacts, ShellState]:
    job = JobFacts(JobId("7"), 7, 1000, devices=(GPU,), device=GPU, roots=(ProcessFacts(42, 1),))
    state = ShellState(Engine())
    state.jobs[job.job] = job
    state.sessions[SessionId(1)] = SessionFacts(
        cast(SessionView, SimpleNamespace(persistent_bytes=100, ephemeral_bytes=20, is_leaving=False)),
        SessionId(1),
        job.job,
        GPU,
        1000,
    )
    devices: Any = {GPU: gpu, OTHER: SimpleNamespace(capabilities=Capabilities())}
    shell: Any = SimpleNamespace(devices=devices, dispatcher=Dispatcher(state, lambda: 0))
    limits = MemoryLimits(shell, find_group=lambda pid: group if pid == 42 else "")
    return limits, job, state


def test_the_limit_is_the_memory_of_the_sessions_and_is_lifted_with_the_job() -> None:
    gpu = Gpu()
    limits, job, state = make(gpu)
    limits.confine(job)
    assert gpu.limits == {GROUP: 120}
    confined = state.jobs[job.job]
    assert confined.cgroup == GROUP, "noted, because the next daemon must lift it"
    state.sessions.clear()
    limits.confine(replace(confined, is_ended=True))
    assert gpu.limits == {GROUP: None}


def test_the_limit_is_raised_for_an_overrun_that_the_engine_allows() -> None:
    gpu = Gpu()
    limits, job, state = make(gpu)
    limits.confine(job)
    cast(Any, state.sessions[SessionId(1)].view).persistent_bytes = 300
    nothing: Any = None
    limits.watch(nothing, [commands.AllowOverrun(SessionId(1), 300, 20)], 0)
    assert gpu.limits == {GROUP: 320}


def test_no_limit_is_set_without_a_cgroup_or_driver_limits_and_a_hung_driver_ends_no_job() -> None:
    gpu = Gpu()
    limits, job, _ = make(gpu, group="")
    limits.confine(job)
    assert gpu.asked_count == 0
    gpu = Gpu(is_able=False)
    limits, job, _ = make(gpu)
    limits.confine(job)
    limits.confine(job)
    assert gpu.asked_count == 1
    gpu = Gpu(is_hung=True)
    limits, job, _ = make(gpu)
    limits.confine(job)
    assert gpu.asked_count == 1
