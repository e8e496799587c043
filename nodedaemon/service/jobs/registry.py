"""The jobs of this node: every job is added, changed and removed here, with its sessions and its usage records."""

from __future__ import annotations

import asyncio
import time

from msgspec.structs import replace

from nodedaemon.config import Settings
from nodedaemon.core.types import JobClass, JobId, LaneSharing, SessionId
from nodedaemon.drivers.process import is_alive as process_is_alive
from nodedaemon.drivers.process import read_stat
from nodedaemon.service.devices.memory_limits import MemoryLimits
from nodedaemon.service.journal.state import CounterNote, JobFacts, JobGone, JobNote, ProcessFacts, SessionFacts
from nodedaemon.service.sessions.attach import SessionAttach
from nodedaemon.service.sessions.executor import Executor
from nodedaemon.service.shell import Shell

#: The account of a local job, unless an admin chooses another.
LOCAL_ACCOUNT = "local"


class JobRegistry:
    def __init__(self, shell: Shell, memory_limits: MemoryLimits, attach: SessionAttach, executor: Executor) -> None:
        self.shell = shell
        self._dispatcher, self._roster = shell.dispatcher, shell.roster
        self._memory_limits = memory_limits
        self._attach = attach
        self._executor = executor

    @property
    def jobs(self) -> dict[JobId, JobFacts]:
        return self._dispatcher.state.jobs

    def get(self, job: str) -> JobFacts | None:
        return self.jobs.get(JobId(job))

    def full_name(self, name: str) -> str | None:
        """The id of the job that a user names: Slurm's id, `local-3`, or just `3` for that; None if there is none."""
        return next((one for one in (name, f"local-{name}") if JobId(one) in self.jobs), None)

    def next_local_number(self) -> int:
        state = self._dispatcher.state
        number = state.job_next
        self._dispatcher.note(CounterNote(state.session_next, number + 1))
        return number

    def add(self, job: JobFacts) -> JobFacts:
        """Register the job and return it with its domain and its start."""
        sharing = self.shell.configuration.for_device(job.device).lanes.sharing
        if sharing is LaneSharing.ACCOUNT and not is_account_checked(job):
            sharing = LaneSharing.USER
        domain = sharing.domain(job.user or str(job.uid), job.account)
        job = replace(job, domain=domain, start_utc_ns=time.time_ns(), start_mono_ns=self._dispatcher.clock())
        self._dispatcher.note(JobNote(job))
        self.shell.recorder.on_job(job)
        return job

    def add_process(self, job: JobFacts | None, pid: int, uid: int) -> None:
        """A hook names a process of the job: every process that descends from it belongs to the job."""
        stat = read_stat(pid) if pid > 0 else None
        if job is None or stat is None or job.uid != uid:
            return
        root = ProcessFacts(pid, stat.start_ticks)
        if root not in job.roots:
            job = self._dispatcher.change_job(job.job, roots=(*filter(is_alive, job.roots), root)) or job
        self.confine(job, pid)

    def confine(self, job: JobFacts, pid: int) -> None:
        """Apply the driver's memory limits to the job, now that one of its processes is known."""
        self._memory_limits.confine(job, pid)

    def open_sessions(self, job: JobFacts) -> list[SessionFacts]:
        """Open a session without a process on each device of the job."""
        return [self._attach.open(job, device) for device in job.devices]

    def attached_jobs(self) -> set[JobId]:
        """Jobs with a session that has a process."""
        sessions = self._dispatcher.state.sessions.values()
        return {session.job for session in sessions if session.process.pid and not session.view.is_leaving}

    async def wait_admitted(self, job: JobFacts, timeout_s: float) -> bool:
        """Wait until the engine has admitted all sessions of the job; False if the time is up first."""
        sessions = self._sessions(job)
        lives = [live for session in sessions if (live := self._roster.get(session)) is not None]
        waits = [asyncio.ensure_future(live.admitted.wait()) for live in lives if not live.admitted.is_set()]
        if waits:
            _, pending = await asyncio.wait(waits, timeout=timeout_s)
            for wait in pending:
                wait.cancel()
        facts = [self._dispatcher.state.sessions.get(session) for session in sessions]
        return all(one is None or one.view.is_admitted for one in facts)

    async def end(self, job: JobFacts, timeout_s: float) -> None:
        """End the job and those of its sessions that have no process. Wait up to `timeout_s` for the others to end."""
        ended = self._dispatcher.change_job(job.job, is_ended=True)
        if ended is None:
            return
        self.shell.recorder.on_job(ended)
        self._memory_limits.confine(ended)
        attached = []
        for session in self._sessions(job):
            live = self._roster.get(session)
            if live is None or live.process is None:
                self._executor.leave(session, "finished")
            else:
                attached.append(live)
        if attached:
            await asyncio.wait([asyncio.ensure_future(live.released.wait()) for live in attached], timeout=timeout_s)
        self._dispatcher.note(JobGone(job.job))

    def _sessions(self, job: JobFacts) -> list[SessionId]:
        return [session.session for session in self._dispatcher.state.live_sessions(job.job)]


def is_account_checked(job: JobFacts) -> bool:
    """Whether the account is more than what a user wrote.

    salus-admitd admits jobs of LaneSharing=account only if Slurm checks accounts. Only an admin chooses the account of
    a local job.
    """
    return job.account != LOCAL_ACCOUNT if job.is_local else bool(job.admission)


def job_class_of(name: str, settings: Settings) -> JobClass:
    """The class with this name, or the configured default."""
    job_class = JobClass.named(name)
    return settings.order.default_class if job_class is None else job_class


def is_alive(process: ProcessFacts) -> bool:
    return process_is_alive(process.pid, process.start_ticks)
