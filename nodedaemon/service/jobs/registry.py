"""The jobs of this node: every job is added, changed and removed here, with its notes and its usage records."""

from __future__ import annotations

from nodedaemon.config import Settings
from nodedaemon.core.types import JobClass, JobId
from nodedaemon.drivers.process import read_stat
from nodedaemon.service.control.configuration import ActiveConfiguration
from nodedaemon.service.devices.memory_limits import MemoryLimits
from nodedaemon.service.journal.dispatcher import Dispatcher
from nodedaemon.service.journal.state import CounterNote, JobFacts, JobGone, JobNote, ProcessFacts
from nodedaemon.service.node import NodeClock
from nodedaemon.service.usage.recorder import UsageRecorder


class JobRegistry:
    def __init__(
        self,
        dispatcher: Dispatcher,
        configuration: ActiveConfiguration,
        memory_limits: MemoryLimits,
        recorder: UsageRecorder,
        clock: NodeClock,
    ) -> None:
        self._dispatcher = dispatcher
        self.configuration = configuration
        self._memory_limits = memory_limits
        self._recorder = recorder
        self._clock = clock

    @property
    def jobs(self) -> dict[JobId, JobFacts]:
        return self._dispatcher.state.jobs

    def get(self, job: str) -> JobFacts | None:
        return self.jobs.get(JobId(job))

    def full_name(self, name: str) -> str | None:
        """The id of the job that a user names: Slurm's id, `local-3`, or `3` for that; None if there is none."""
        return next((one for one in (name, f"local-{name}") if JobId(one) in self.jobs), None)

    def next_local_number(self) -> int:
        state = self._dispatcher.state
        number = state.job_next
        self._dispatcher.note(CounterNote(state.session_next, number + 1))
        return number

    def add(self, job: JobFacts) -> None:
        sharing = self.configuration.for_device(job.device).lanes.sharing
        job.domain = sharing.domain(job.user or str(job.uid), job.account)
        job.start_utc_ns, job.start_mono_ns = self._clock.utc_ns(), self._clock.monotonic_ns()
        self._dispatcher.note(JobNote(job))
        self._recorder.on_job(job)

    def add_process(self, job: JobFacts | None, pid: int, uid: int) -> None:
        """A hook names a process of the job: every process that descends from it belongs to the job."""
        stat = read_stat(pid) if pid > 0 else None
        if job is None or stat is None or job.uid != uid:
            return
        root = ProcessFacts(pid, stat.start_ticks)
        if root not in job.roots:
            job.roots = [one for one in job.roots if is_alive(one)] + [root]
            self._dispatcher.note(JobNote(job))
        self.confine(job, pid)

    def confine(self, job: JobFacts, pid: int) -> None:
        """Apply the driver's memory limits to the job, now that one of its processes is known."""
        self._memory_limits.confine(job, pid)

    def mark_ended(self, job: JobFacts) -> None:
        job.is_ended = True
        self._dispatcher.note(JobNote(job))
        self._recorder.on_job(job)
        self._memory_limits.confine(job)

    def remove(self, job: JobFacts) -> None:
        self._dispatcher.note(JobGone(job.job))


def job_class_of(name: str, settings: Settings) -> JobClass:
    """The class with this name, or the configured default."""
    job_class = JobClass.named(name)
    return settings.order.default_class if job_class is None else job_class


def is_alive(process: ProcessFacts) -> bool:
    """Whether this very process lives: a pid alone may belong to another one by now."""
    stat = read_stat(process.pid) if process.pid > 0 else None
    return stat is not None and stat.start_ticks == process.start_ticks and stat.state not in "ZX"
