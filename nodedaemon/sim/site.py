"""A site in virtual time: jobs are submitted, wait in the queue, run on devices and end.

Slurm's part is the queue (nodedaemon.sim.job_queue). A device runs its jobs with the engine or as a baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from nodedaemon.sim.clock import TimerKind, VirtualClock
from nodedaemon.sim.device import SimulatedDevice
from nodedaemon.sim.job_queue import DevicePool, JobQueue
from nodedaemon.sim.results import JobTimes, ShareMeter
from nodedaemon.sim.workload import Job


class Site:
    """The queue and the devices of a run. Jobs have numbers. A device is made when the first job is placed there."""

    def __init__(
        self,
        jobs: Sequence[Job],
        pool: DevicePool,
        charges: Sequence[int],
        order: Sequence[int],
        meter: ShareMeter | None,
        make_device: Callable[[int, Site], SimulatedDevice[Any]],
    ) -> None:
        self.times = [JobTimes(job) for job in jobs]
        self.clock, self.meter = VirtualClock(), meter
        self._make_device = make_device
        self._progress: Callable[[int], None] | None = None
        # `order` lists job numbers, the first of the queue first. `JobQueue` knows a job by its place in that order.
        self._order = order
        self._places = [0] * len(jobs)
        for place, number in enumerate(order):
            self._places[number] = place
        self._queue = JobQueue(
            [charges[number] for number in order], [jobs[number].device_count for number in order], pool
        )
        self._devices_of: dict[int, list[int]] = {}
        self._devices: dict[int, SimulatedDevice[Any]] = {}
        self._ended_count = 0
        for number, job in enumerate(jobs):
            self.clock.call_at(job.submit_ns, TimerKind.SUBMISSION, number, partial(self._submit, number))

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
        devices = self._queue.submit(self._places[number])
        if devices is not None:
            self._start(number, devices)

    def _start(self, number: int, devices: list[int]) -> None:
        self._devices_of[number] = devices
        times = self.times[number]
        if len(devices) > 1:
            times.start_ns = self.clock.now_ns
            end_ns = self.clock.now_ns + times.job.solo_ns
            self.clock.call_at(end_ns, TimerKind.END, number, partial(self._end_whole, number))
            return
        if devices[0] not in self._devices:
            self._devices[devices[0]] = self._make_device(devices[0], self)
        self._devices[devices[0]].start(number, times)

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
        for place, devices in self._queue.release(self._places[number], self._devices_of.pop(number)):
            self._start(self._order[place], devices)

    def _report(self) -> None:
        if self.meter is not None:
            for device in self._devices.values():
                device.report()
