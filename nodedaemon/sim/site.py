"""A site in virtual time: jobs are submitted, wait in the line, run on devices, end.

What a device does with its jobs is the runner's business: the engine's (nodedaemon.sim.gated_device) or a baseline's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from nodedaemon.sim.clock import Due, VirtualClock
from nodedaemon.sim.line import Line, Room
from nodedaemon.sim.results import JobTimes, ShareMeter
from nodedaemon.sim.workload import Job

#: Jain's index needs every device's progress at every arrival and end; beyond this many that costs too much.
METERED_DEVICES_MAX = 8


class Runner(Protocol):
    """A device that runs jobs and says when one has ended."""

    def start(self, number: int, times: JobTimes) -> None: ...

    def report(self) -> None: ...


class Site:
    """Jobs by number, a device runner made when its device is first used."""

    def __init__(
        self,
        jobs: Sequence[Job],
        clock: VirtualClock,
        room: Room,
        charges: Sequence[int],
        order: Sequence[int],
        meter: ShareMeter | None,
    ) -> None:
        self.times = [JobTimes(job) for job in jobs]
        self._clock, self._meter = clock, meter
        # `order` lists job numbers, who goes first first; the line knows jobs by their place in it.
        self._order = order
        self._places = [0] * len(jobs)
        for place, number in enumerate(order):
            self._places[number] = place
        self._line = Line([charges[number] for number in order], [jobs[number].device_count for number in order], room)
        self._devices: dict[int, list[int]] = {}
        self.runners: dict[int, Runner] = {}
        self._ended_count = 0
        for number, job in enumerate(jobs):
            clock.put(job.submit_ns, Due.SUBMISSION, number, partial(self._submit, number))

    def run(
        self,
        make_runner: Callable[[int, Callable[[int], None]], Runner],
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Let time pass until every job has ended. `progress` is called with the number of jobs that have ended."""
        self._make_runner, self._progress = make_runner, progress
        self._clock.run()
        left = [times.job.id for times in self.times if times.end_ns is None]
        assert not left, f"simulate: {len(left)} jobs never ended, first {left[0]}"

    def _submit(self, number: int) -> None:
        self._report()
        if self._meter is not None:
            self._meter.join(self.times[number].job, self._clock.now_ns)
        devices = self._line.submit(self._places[number])
        if devices is not None:
            self._start(number, devices)

    def _start(self, number: int, devices: list[int]) -> None:
        self._devices[number] = devices
        times = self.times[number]
        if len(devices) > 1:
            times.start_ns = self._clock.now_ns
            end_ns = self._clock.now_ns + times.job.solo_ns
            self._clock.put(end_ns, Due.END, number, lambda: self._end_whole(number))
            return
        runner = self.runners.get(devices[0])
        if runner is None:
            runner = self.runners[devices[0]] = self._make_runner(devices[0], self.ended)
        runner.start(number, times)

    def _end_whole(self, number: int) -> None:
        self.times[number].end_ns = self._clock.now_ns
        self.ended(number)

    def ended(self, number: int) -> None:
        """A runner's job is gone and its memory free."""
        self._report()
        if self._meter is not None:
            self._meter.leave(self.times[number].job, self._clock.now_ns)
        self._ended_count += 1
        if self._progress is not None:
            self._progress(self._ended_count)
        for place, devices in self._line.release(self._places[number], self._devices.pop(number)):
            self._start(self._order[place], devices)

    def _report(self) -> None:
        if self._meter is not None:
            for runner in self.runners.values():
                runner.report()
