"""A site in virtual time: jobs are submitted, wait in the queue, run on devices and end.

A `Runner` runs the jobs of one device: with the engine (nodedaemon.sim.gated_device) or as a baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from nodedaemon.sim.clock import Due, VirtualClock
from nodedaemon.sim.line import Line, Room
from nodedaemon.sim.results import JobTimes, ShareMeter
from nodedaemon.sim.workload import Job

#: Jain's index needs the progress of every device at every arrival and end. With more devices that takes too long.
METERED_DEVICES_MAX = 8


class Runner(Protocol):
    """A device that runs jobs and calls `Site.ended` for each one."""

    def start(self, number: int, times: JobTimes) -> None: ...

    def report(self) -> None: ...


class Site:
    """Knows jobs by number, and makes the runner of a device when the device is first used."""

    def __init__(
        self,
        jobs: Sequence[Job],
        room: Room,
        charges: Sequence[int],
        order: Sequence[int],
        meter: ShareMeter | None,
        make_runner: Callable[[int, Site], Runner],
    ) -> None:
        self.times = [JobTimes(job) for job in jobs]
        self.clock, self.meter = VirtualClock(), meter
        self._make_runner = make_runner
        self._progress: Callable[[int], None] | None = None
        # `order` lists job numbers, first in line first. `Line` knows a job by its position in that order.
        self._order = order
        self._places = [0] * len(jobs)
        for place, number in enumerate(order):
            self._places[number] = place
        self._line = Line([charges[number] for number in order], [jobs[number].device_count for number in order], room)
        self._devices: dict[int, list[int]] = {}
        self.runners: dict[int, Runner] = {}
        self._ended_count = 0
        for number, job in enumerate(jobs):
            self.clock.put(job.submit_ns, Due.SUBMISSION, number, partial(self._submit, number))

    def run(self, progress: Callable[[int], None] | None) -> None:
        """Let time pass until every job has ended. `progress` is called with the number of jobs that have ended."""
        self._progress = progress
        self.clock.run()
        left = [times.job.id for times in self.times if times.end_ns is None]
        assert not left, f"simulate: {len(left)} jobs never ended, first {left[0]}"

    def _submit(self, number: int) -> None:
        self._report()
        if self.meter is not None:
            self.meter.join(self.times[number].job, self.clock.now_ns)
        devices = self._line.submit(self._places[number])
        if devices is not None:
            self._start(number, devices)

    def _start(self, number: int, devices: list[int]) -> None:
        self._devices[number] = devices
        times = self.times[number]
        if len(devices) > 1:
            times.start_ns = self.clock.now_ns
            end_ns = self.clock.now_ns + times.job.solo_ns
            self.clock.put(end_ns, Due.END, number, lambda: self._end_whole(number))
            return
        runner = self.runners.get(devices[0])
        if runner is None:
            runner = self.runners[devices[0]] = self._make_runner(devices[0], self)
        runner.start(number, times)

    def _end_whole(self, number: int) -> None:
        self.times[number].end_ns = self.clock.now_ns
        self.ended(number)

    def ended(self, number: int) -> None:
        """A job is gone and its memory is free."""
        self._report()
        if self.meter is not None:
            self.meter.leave(self.times[number].job, self.clock.now_ns)
        self._ended_count += 1
        if self._progress is not None:
            self._progress(self._ended_count)
        for place, devices in self._line.release(self._places[number], self._devices.pop(number)):
            self._start(self._order[place], devices)

    def _report(self) -> None:
        if self.meter is not None:
            for runner in self.runners.values():
                runner.report()
