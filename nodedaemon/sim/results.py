"""The results of a simulated run: the times of every job, and the figures that are printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from nodedaemon.core.fairness import jain_of_sums
from nodedaemon.core.types import MILLISECOND_NS, SECOND_NS, LaneId
from nodedaemon.sim.workload import Job


@dataclass(slots=True)
class JobTimes:
    """When a job was submitted, first ran and ended."""

    job: Job
    start_ns: int | None = None
    end_ns: int | None = None
    #: Time between a request and the start of its iteration, summed over a server's requests.
    request_wait_ns: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """Time for which a job held one grant in one lane."""

    number: int
    lane: LaneId
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The figures of one policy on one workload. Times are seconds, as floats, because no decision depends on them.

    Completion is from submit to end; queueing from submit to the first iteration; makespan from the first submit to the
    last end. `gpus_needed` is the number of devices that hold all jobs at once, so that no job waits for a device.
    """

    name: str
    workload: str
    gpus_needed: int
    average_completion_s: float
    median_completion_s: float
    p95_completion_s: float
    average_queueing_s: float
    p95_queueing_s: float
    makespan_s: float
    average_slowdown: float
    jain_average: float | None
    jain_minimum: float | None
    hand_overs: int = 0
    lane_openings: int = 0
    average_request_wait_ms: float | None
    job_count: int


def summarize(
    name: str, workload: str, jobs_times: Sequence[JobTimes], gpus_needed: int, meter: ShareMeter | None
) -> RunResult:
    """Summarize a run in which every job ended. The caller adds the counts of hand-overs and lane openings."""
    completions, queueings, slowdowns, waits_ns, request_count = [], [], [], 0, 0
    for times in jobs_times:
        assert times.start_ns is not None
        assert times.end_ns is not None
        job = times.job
        completions.append((times.end_ns - job.submit_ns) / SECOND_NS)
        queueings.append((times.start_ns - job.submit_ns) / SECOND_NS)
        slowdowns.append((times.end_ns - job.submit_ns) / max(1, job.solo_ns))
        if job.request_offsets_ns is not None:
            waits_ns += times.request_wait_ns
            request_count += len(job.request_offsets_ns)
    last_ns = max(times.end_ns or 0 for times in jobs_times)
    first_ns = min(times.job.submit_ns for times in jobs_times)
    return RunResult(
        name=name,
        workload=workload,
        gpus_needed=gpus_needed,
        average_completion_s=fmean(completions),
        median_completion_s=quantile(completions, 0.5),
        p95_completion_s=quantile(completions, 0.95),
        average_queueing_s=fmean(queueings),
        p95_queueing_s=quantile(queueings, 0.95),
        makespan_s=(last_ns - first_ns) / SECOND_NS,
        average_slowdown=fmean(slowdowns),
        jain_average=meter.average() if meter else None,
        jain_minimum=meter.minimum if meter else None,
        average_request_wait_ms=waits_ns / request_count / MILLISECOND_NS if request_count else None,
        job_count=len(jobs_times),
    )


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of all values lie, interpolated between the two nearest values."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


class ShareMeter:
    """Jain's index of the weighted service that jobs attained since the last job was submitted or ended.

    It covers all jobs that were submitted and have not ended, including those that wait for a device. The index is
    computed only after five rounds of work. A round is one iteration of each job. Before that, a difference of one
    iteration is a large part of the whole, even under an ideal order.
    """

    ROUNDS = 5

    def __init__(self) -> None:
        self.minimum: float | None = None
        self._served: dict[int, float] = {}
        self._count = 0
        self._round_ns = 0
        self._work_ns = 0.0
        self._sum = 0.0
        self._squares = 0.0
        self._began_ns = 0
        self._weighted = 0.0
        self._weights_ns = 0

    def join(self, job: Job, now_ns: int) -> None:
        self._restart(now_ns)
        self._count += 1
        self._round_ns += job.iteration_ns

    def leave(self, job: Job, now_ns: int) -> None:
        self._restart(now_ns)
        self._count -= 1
        self._round_ns -= job.iteration_ns

    def serve(self, number: int, job: Job, work_ns: float) -> None:
        """Count work done. Call `sample` after the work of all jobs is counted."""
        before = self._served.get(number, 0.0)
        after = before + work_ns / job.weight
        self._served[number] = after
        self._work_ns += work_ns
        self._sum += after - before
        self._squares += after * after - before * before

    def sample(self) -> float | None:
        """The index now, or None before five rounds are done."""
        if self._count < 2 or self._work_ns < self.ROUNDS * self._round_ns or self._squares <= 0.0:
            return None
        index = min(1.0, jain_of_sums(self._sum, self._squares, self._count))
        self.minimum = index if self.minimum is None else min(self.minimum, index)
        return index

    def average(self) -> float | None:
        """Mean of the indices at the ends of all periods of five rounds or more, weighted by their lengths."""
        return self._weighted / self._weights_ns if self._weights_ns else None

    def _restart(self, now_ns: int) -> None:
        index = self.sample()
        if index is not None and now_ns > self._began_ns:
            self._weighted += index * (now_ns - self._began_ns)
            self._weights_ns += now_ns - self._began_ns
        self._served, self._sum, self._squares, self._work_ns = {}, 0.0, 0.0, 0.0
        self._began_ns = now_ns
