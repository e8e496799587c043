"""One device in virtual time: jobs start up on it and work at rates that depend on what else runs there.

`GatedDevice` runs jobs under the engine's grants. `UngatedDevice` runs all of them at once, for the baselines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from nodedaemon.core.memory import SHARD_UNIT_BYTES
from nodedaemon.core.types import DeviceLimits, LaneSharing
from nodedaemon.sim.clock import Timer, TimerKind
from nodedaemon.sim.job_queue import Spread
from nodedaemon.sim.results import JobTimes
from nodedaemon.sim.speed import WORK_SCALE, Speeds

if TYPE_CHECKING:
    from nodedaemon.sim.site import Site


@dataclass(frozen=True, slots=True)
class SimulationSetup:
    """The devices, and the assumptions about them. `lane_reserve_bytes` None means auto."""

    device_bytes: int
    device_count: int = 1
    node_count: int = 1
    lane_reserve_bytes: int | None = None
    lanes_max: int = DeviceLimits(0).lanes_max
    context_bytes: int = 0
    headroom_percent: int = 0
    unit_bytes: int = SHARD_UNIT_BYTES
    lane_sharing: LaneSharing = LaneSharing.USER
    spread: Spread = Spread.LEAST_LOADED
    turns_per_job: int | None = None
    pair_speeds: Mapping[tuple[str, str], float] | None = None
    #: Wake up at every boundary, not only where a decision is made. The result is the same.
    is_single_step: bool = False
    #: Weight of a job that starts up on the device's cores, compared with a running iteration. 0: it starts elsewhere.
    startup_weight: float = 0.0


@dataclass(slots=True, eq=False)
class PlacedJob:
    """A job on the device. `position` is the work done since it began to start up, or since its last boundary."""

    number: int
    times: JobTimes
    position: int = 0
    #: The part of `position` that the meter has counted.
    metered: int = 0
    rate: int = 0

    @property
    def startup_work(self) -> int:
        return self.times.job.startup_ns * WORK_SCALE


BusyJob = TypeVar("BusyJob", bound=PlacedJob)


class SimulatedDevice(ABC, Generic[BusyJob]):
    """A device with its jobs. It reports each job that has ended, and whose memory is free, to its site."""

    def __init__(self, number: int, site: Site, setup: SimulationSetup) -> None:
        self._number, self._clock, self._meter, self._ended = number, site.clock, site.meter, site.ended
        self._setup, self._speeds = setup, Speeds(setup.pair_speeds)
        self._starting: dict[int, PlacedJob] = {}
        self._gone: list[int] = []
        self._settled_ns = 0
        self._boundary: Timer | None = None

    @abstractmethod
    def _begin(self, number: int, times: JobTimes) -> None:
        """The job has started up and may work from now on."""

    @abstractmethod
    def _busy(self) -> Sequence[BusyJob]:
        """The jobs that work now."""

    @abstractmethod
    def _target(self, job: BusyJob) -> int:
        """The position of the next boundary of a busy job that matters."""

    @abstractmethod
    def _finish_due(self) -> None:
        """Handle the boundary of every busy job that has reached one."""

    @abstractmethod
    def _request(self, job: BusyJob) -> None:
        """A server gets a request for one more iteration."""

    def start(self, number: int, times: JobTimes) -> None:
        """Place a job here. It begins to work as soon as it has started up."""
        self._advance()
        startup_ns = times.job.startup_ns
        if not startup_ns:
            self._begin(number, times)
        elif self._setup.startup_weight:
            self._starting[number] = PlacedJob(number, times)
            self._plan()
        else:
            at_ns = self._clock.now_ns + startup_ns
            self._clock.call_at(at_ns, TimerKind.SUBMISSION, number, partial(self._begin, number, times))

    def report(self) -> None:
        """Report to the meter how much work was done up to now."""
        self._advance()
        if self._meter is not None:
            for job in self._busy():
                self._meter.serve(job.number, job.times.job, (job.position - job.metered) / WORK_SCALE)
                job.metered = job.position

    def _expect_requests(self, job: BusyJob) -> None:
        for offset_ns in job.times.job.request_offsets_ns or ():
            at_ns = self._clock.now_ns + offset_ns
            self._clock.call_at(at_ns, TimerKind.REQUEST, job.number, partial(self._request, job))

    def _advance(self) -> None:
        """Update the progress of every job to the current time."""
        passed_ns, self._settled_ns = self._clock.now_ns - self._settled_ns, self._clock.now_ns
        if passed_ns:
            jobs: list[PlacedJob] = [*self._busy(), *self._starting.values()]
            for job in jobs:
                job.position += job.rate * passed_ns

    def _plan(self) -> None:
        """Set the speed of every job and the next moment at which a boundary matters."""
        busy, starting = self._busy(), self._starting.values()
        models = [job.times.job.model for job in busy]
        rates, starting_rate = self._speeds.rates_beside(models, len(starting), self._setup.startup_weight)
        left_ns = []
        for job, rate in zip(busy, rates, strict=True):
            job.rate = rate
            left_ns.append(max(0, -(-(self._target(job) - job.position) // rate)))
        for one in starting:
            one.rate = starting_rate
            left_ns.append(max(0, -(-(one.startup_work - one.position) // starting_rate)))
        self._boundary = self._clock.reschedule(
            self._boundary, min(left_ns, default=None), TimerKind.BOUNDARY, self._number, self._reach_boundary
        )

    def _reach_boundary(self) -> None:
        self.report()
        ready = sorted(number for number, job in self._starting.items() if job.position >= job.startup_work)
        self._finish_due()
        for number in ready:
            self._begin(number, self._starting.pop(number).times)
        self._plan()
        self._report_gone()

    def _report_gone(self) -> None:
        while self._gone:
            self._ended(self._gone.pop(0))
