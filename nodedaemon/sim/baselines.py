"""Sharing without lanes, to compare with: everybody on a device runs when it likes.

`exclusive` gives each job a whole device, `peak` as many as fit by their peak memory. Whoever is busy at the same time
shares the device's throughput (nodedaemon.sim.speed). Jobs start in the order of the line; see nodedaemon.sim.line.
"""

from __future__ import annotations

from collections.abc import Callable

from nodedaemon.sim.clock import Appointment, Due, VirtualClock
from nodedaemon.sim.results import JobTimes, ShareMeter
from nodedaemon.sim.speed import WORK_SCALE, Speeds
from nodedaemon.sim.workload import Job


class _Runner:
    """One job on the device: a batch job is a single piece of work, a server's requests are one piece each.

    Where starting up takes part of the device, it is a piece before all others, which is no service.
    """

    __slots__ = (
        "done_count",
        "is_starting",
        "metered",
        "number",
        "piece",
        "piece_count",
        "position",
        "rate",
        "times",
        "waiting_ns",
    )

    def __init__(self, number: int, times: JobTimes) -> None:
        job = times.job
        self.number, self.times = number, times
        is_batch = job.request_offsets_ns is None
        self.piece = (job.work_ns if is_batch else job.iteration_ns) * WORK_SCALE
        self.piece_count = 1 if is_batch else job.iteration_count
        #: Times of requests that are not answered yet; a batch job has asked for all its work at its start.
        self.waiting_ns: list[int] = []
        self.done_count = self.position = self.metered = self.rate = 0
        self.is_starting = False

    @property
    def target(self) -> int:
        return self.times.job.startup_ns * WORK_SCALE if self.is_starting else self.piece


class UngatedDevice:
    """A device on which all jobs run at once."""

    def __init__(
        self,
        number: int,
        clock: VirtualClock,
        speeds: Speeds,
        meter: ShareMeter | None,
        ended: Callable[[int], None],
        *,
        startup_weight: float = 0.0,
    ) -> None:
        self._startup_weight = startup_weight
        self._number, self._clock, self._speeds, self._meter, self._ended = number, clock, speeds, meter, ended
        self._runners: dict[int, _Runner] = {}
        self._settled_ns = 0
        self._appointment: Appointment | None = None

    def start(self, number: int, times: JobTimes) -> None:
        self._settle()
        runner = self._runners[number] = _Runner(number, times)
        startup_ns = times.job.startup_ns
        if not startup_ns:
            self._begin(runner)
        elif self._startup_weight:
            runner.is_starting = True
        else:
            self._clock.put(self._clock.now_ns + startup_ns, Due.SUBMISSION, number, lambda: self._begin_late(runner))
        self._plan()

    def _begin_late(self, runner: _Runner) -> None:
        self._settle()
        self._begin(runner)
        self._plan()

    def _begin(self, runner: _Runner) -> None:
        number, times = runner.number, runner.times
        if times.job.request_offsets_ns is None:
            times.start_ns = self._clock.now_ns
            runner.waiting_ns.append(self._clock.now_ns)
        else:
            for offset_ns in times.job.request_offsets_ns:
                at_ns = self._clock.now_ns + offset_ns
                self._clock.put(at_ns, Due.REQUEST, number, lambda: self._request(runner))

    def report(self) -> None:
        """Tell the meter what was done up to now."""
        self._settle()
        if self._meter is not None:
            for runner in self._runners.values():
                if runner.is_starting:
                    continue
                self._meter.serve(runner.number, runner.times.job, (runner.position - runner.metered) / WORK_SCALE)
                runner.metered = runner.position

    def _request(self, runner: _Runner) -> None:
        self._settle()
        runner.waiting_ns.append(self._clock.now_ns)
        if len(runner.waiting_ns) == 1 and runner.times.start_ns is None:
            runner.times.start_ns = self._clock.now_ns
        self._plan()

    def _settle(self) -> None:
        passed_ns, self._settled_ns = self._clock.now_ns - self._settled_ns, self._clock.now_ns
        if passed_ns:
            for runner in self._runners.values():
                runner.position += runner.rate * passed_ns

    def _plan(self) -> None:
        starting = [runner for runner in self._runners.values() if runner.is_starting]
        busy = [runner for runner in self._runners.values() if runner.waiting_ns]
        models = [runner.times.job.model for runner in busy]
        rates, starter_rate = self._speeds.rates_beside(models, len(starting), self._startup_weight)
        for runner in self._runners.values():
            runner.rate = 0
        left_ns = []
        for runner, rate in zip([*busy, *starting], [*rates, *[starter_rate] * len(starting)], strict=True):
            runner.rate = rate
            left_ns.append(max(0, -(-(runner.target - runner.position) // rate)))
        self._appointment = self._clock.move(
            self._appointment, min(left_ns, default=None), Due.BOUNDARY, self._number, self._finish
        )

    def _finish(self) -> None:
        self.report()
        gone = []
        for runner in sorted(self._runners.values(), key=lambda runner: runner.number):
            if runner.is_starting:
                if runner.position >= runner.target:
                    runner.is_starting, runner.position = False, 0
                    self._begin(runner)
            elif runner.waiting_ns and runner.position >= runner.piece:
                self._finish_piece(runner)
                if runner.done_count == runner.piece_count:
                    runner.times.end_ns = self._clock.now_ns
                    del self._runners[runner.number]
                    gone.append(runner.number)
        self._plan()
        for number in gone:
            self._ended(number)

    def _finish_piece(self, runner: _Runner) -> None:
        asked_ns = runner.waiting_ns.pop(0)
        job: Job = runner.times.job
        if job.request_offsets_ns is not None:
            # What a request took beyond its iteration alone: it waited, or went slower beside others.
            runner.times.request_wait_ns += max(0, self._clock.now_ns - asked_ns - job.iteration_ns)
        runner.done_count += 1
        runner.position = runner.metered = 0
