"""Whose process is it: a peer's job by the kernel's word, never by its own.

In order: the cgroup that Slurm made, the pids that Slurm's hooks or `salus run` registered (the process itself or one
it descends from), Slurm's own pid list. A process of none of them has no job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nodedaemon.core.types import JobId
from nodedaemon.drivers.cgroup import JobPlace, place_of_process
from nodedaemon.drivers.process import PROC, read_stat
from nodedaemon.service.journal.state import JobFacts, ProcessFacts

#: A process tree deeper than this is no launcher's; it also ends a walk over a forged /proc in tests.
ANCESTORS_MAX = 64


@dataclass(frozen=True, slots=True)
class Found:
    """The job that a process belongs to; `job` is unknown to us where only `place` names it."""

    job: JobFacts | None
    place: JobPlace | None


def find_job(
    pid: int, jobs: Mapping[JobId, JobFacts], list_pids: Callable[[], Mapping[int, JobPlace]], proc: Path = PROC
) -> Found:
    """Find the job of a live process. `list_pids` is asked last, because it starts a command of Slurm's."""
    place = place_of_process(pid, proc)
    if place is not None:
        return Found(job_at(place, jobs), place)
    line = ancestors(pid, proc)
    roots = {root: job for job in jobs.values() if not job.is_ended for root in job.roots}
    for process in line:
        if process in roots:
            return Found(roots[process], None)
    if not any(not job.is_local for job in jobs.values()):
        return Found(None, None)
    listed = list_pids()
    for process in line:
        if process.pid in listed:
            return Found(job_at(listed[process.pid], jobs), listed[process.pid])
    return Found(None, None)


def job_at(place: JobPlace, jobs: Mapping[JobId, JobFacts]) -> JobFacts | None:
    for job in jobs.values():
        if job.is_ended or job.is_local:
            continue
        if (place.job is not None and job.job == place.job) or (place.sluid is not None and job.sluid == place.sluid):
            return job
    return None


def ancestors(pid: int, proc: Path = PROC) -> list[ProcessFacts]:
    """The process and those it descends from, nearest first; init is not one of them."""
    line: list[ProcessFacts] = []
    while pid > 1 and len(line) < ANCESTORS_MAX:
        stat = read_stat(pid, proc)
        if stat is None:
            break
        line.append(ProcessFacts(pid, stat.start_ticks))
        pid = stat.parent_pid
    return line
