"""A device without lanes, for comparison: every job on it runs whenever it can.

`exclusive` gives each job a whole device. `peak` puts as many jobs on a device as fit by their peak memory. Jobs that
are busy at the same time share the throughput of the device (nodedaemon.sim.speed).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from nodedaemon.sim.device import PlacedJob, SimulatedDevice, SimulationSetup
from nodedaemon.sim.results import JobTimes
from nodedaemon.sim.site import Site
from nodedaemon.sim.speed import WORK_SCALE


@dataclass(slots=True, eq=False)
class UngatedJob(PlacedJob):
    """A batch job is a single piece of work. For a server, each request is one piece."""

    #: Times of requests that are not answered yet. A batch job requests all its work when it begins.
    requested_ns: deque[int] = field(default_factory=deque)
    done_count: int = 0

    @property
    def is_server(self) -> bool:
        return self.times.job.request_offsets_ns is not None

    @property
    def piece(self) -> int:
        job = self.times.job
        return (job.iteration_ns if self.is_server else job.work_ns) * WORK_SCALE


class UngatedDevice(SimulatedDevice[UngatedJob]):
    """A device on which all jobs run at once."""

    def __init__(self, number: int, site: Site, setup: SimulationSetup) -> None:
        super().__init__(number, site, setup)
        self._jobs: dict[int, UngatedJob] = {}

    def _begin(self, number: int, times: JobTimes) -> None:
        job = self._jobs[number] = UngatedJob(number, times)
        if job.is_server:
            self._expect_requests(job)
        else:
            self._request(job)

    def _busy(self) -> list[UngatedJob]:
        return [job for job in self._jobs.values() if job.requested_ns]

    def _target(self, job: UngatedJob) -> int:
        return job.piece

    def _request(self, job: UngatedJob) -> None:
        self._advance()
        job.requested_ns.append(self._clock.now_ns)
        if job.times.start_ns is None:
            job.times.start_ns = self._clock.now_ns
        self._plan()

    def _finish_due(self) -> None:
        for job in sorted(self._busy(), key=lambda job: job.number):
            if job.position >= job.piece:
                self._finish_piece(job)

    def _finish_piece(self, job: UngatedJob) -> None:
        requested_ns, times = job.requested_ns.popleft(), job.times
        if job.is_server:
            # The time beyond one iteration alone: the request waited, or other jobs slowed its iteration down.
            times.request_wait_ns += max(0, self._clock.now_ns - requested_ns - times.job.iteration_ns)
        job.done_count += 1
        job.position = job.metered = 0
        if job.done_count == (times.job.iteration_count if job.is_server else 1):
            times.end_ns = self._clock.now_ns
            del self._jobs[job.number]
            self._gone.append(job.number)
