"""Measures each job's use of a device: running sums of busy, occupied and entitled time and of memory over time.

The meter does no I/O. The daemon reports every change to the meter of the device, in the order of the monotonic clock.
It closes an interval at round UTC times, and immediately when the wall clock is stepped.

Every nanosecond is divided completely: busy time in equal parts among the running iterations, idle time among the jobs
present, in proportion to their charge. A change costs the same with four sessions or four hundred, because shares
accumulate in counters that all sessions use. Values are rounded when an interval is closed, so that the records of an
interval add up to its wall time to the nanosecond.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from accounting.records import DeviceUsageRecord, JobKey, Record, UsageRecord

# The unit of shares is 2**-40 ns: a billion events then lose less than a thousandth of a nanosecond.
FRACTION_BITS = 40
_ONE = 1 << FRACTION_BITS
_BYTE_NS_PER_MIB_MS = (1 << 20) * 1_000_000


class Activity(Enum):
    """What a session is doing. An ungated session counts as running until it ends."""

    OUTSIDE = "outside"
    WAITING = "waiting"
    RUNNING = "running"
    SUSPENDED = "suspended"


@dataclass
class _Session:
    job: "_Job"
    activity: Activity = Activity.OUTSIDE
    run_from: int = 0
    persistent_bytes: int = 0
    ephemeral_bytes: int = 0
    lane: int | None = None


@dataclass
class _JobSums:
    """What a job has accumulated since the interval began or, if that is later, since its first session.

    `busy`, `idle` and `entitled` are in units of 2**-40 ns.
    """

    first_mono_ns: int
    persistent_bytes_max: int = 0
    ephemeral_bytes_max: int = 0
    spent_ns: dict[Activity, int] = field(default_factory=lambda: dict.fromkeys(Activity, 0))
    busy: int = 0
    idle: int = 0
    entitled: int = 0
    iteration_count: int = 0
    handover_count: int = 0
    peak_byte_ns: int = 0
    held_byte_ns: int = 0


@dataclass
class _Job:
    key: JobKey
    sums: _JobSums
    # The point up to which `sums` is complete: the time, and the device's idle and entitled shares at that time.
    settled: tuple[int, int, int]
    charge: int
    weight: int
    session_count: int = 0
    counts: dict[Activity, int] = field(default_factory=lambda: dict.fromkeys(Activity, 0))
    persistent_bytes: int = 0
    ephemeral_bytes: int = 0

    @property
    def activity(self) -> Activity:
        for activity in (Activity.RUNNING, Activity.WAITING, Activity.OUTSIDE):
            if self.counts[activity]:
                return activity
        return Activity.SUSPENDED

    @property
    def wants_device(self) -> bool:
        return self.session_count > 0 and self.activity in (Activity.RUNNING, Activity.WAITING)


@dataclass
class _Lane:
    lane_bytes: int
    sessions: set[int] = field(default_factory=set)
    since_mono_ns: int = 0


class MeteredDevice(NamedTuple):
    """The device that a meter measures, and the incarnation of the daemon that measures it."""

    cluster: str
    node: str
    device: str
    incarnation: str
    capacity_bytes: int


class DeviceMeter:
    """The meter of one device. Times are monotonic nanoseconds and never decrease."""

    def __init__(self, device: MeteredDevice, *, now_utc_ns: int, now_mono_ns: int) -> None:
        self._names: dict[str, Any] = {"node": device.node, "device": device.device, "incarnation": device.incarnation}
        self._cluster = device.cluster
        self._capacity_bytes = device.capacity_bytes
        self._sessions: dict[int, _Session] = {}
        self._jobs: dict[JobKey, _Job] = {}
        self._lanes: dict[int, _Lane] = {}
        self._now_ns = now_mono_ns
        # Accumulated shares per running session, per unit of charge, and per unit of weight.
        self._run = self._idle = self._entitled = 0
        self._running_count = self._charge_sum = self._weight_sum = self._present_count = 0
        self._lane_bytes = self._persistent_bytes = self._job_count_max = 0
        self._begin(now_utc_ns)

    def join(self, session: int, job: JobKey, now_mono_ns: int, *, charge: int, weight: int = 1) -> None:
        """A session of `job` starts. The job's first session sets its `charge` and `weight`, each at least 1."""
        self._advance(now_mono_ns)
        metered = self._jobs.get(job)
        if metered is None:
            metered = self._jobs[job] = _Job(job, _JobSums(now_mono_ns), self._shares, charge, weight)
        self._settle(metered)
        metered.session_count += 1
        if metered.session_count == 1:
            metered.charge, metered.weight = max(1, charge), max(1, weight)
            self._charge_sum += metered.charge
            self._present_count += 1
            self._job_count_max = max(self._job_count_max, self._present_count)
        metered.counts[Activity.OUTSIDE] += 1
        self._sessions[session] = _Session(metered)

    def leave(self, session: int, now_mono_ns: int) -> None:
        """The session has ended, whatever it was doing."""
        self.change(session, Activity.OUTSIDE, now_mono_ns)
        self.bind(session, None, now_mono_ns)
        self.set_memory(session, 0, 0, now_mono_ns)
        job = self._sessions.pop(session).job
        self._settle(job)
        job.counts[Activity.OUTSIDE] -= 1
        job.session_count -= 1
        if job.session_count == 0:
            assert job.activity not in (Activity.RUNNING, Activity.WAITING)
            self._charge_sum -= job.charge
            self._present_count -= 1

    def change(self, session: int, activity: Activity, now_mono_ns: int, *, iteration_count: int = 0) -> None:
        """The session's activity changes, after `iteration_count` more iterations."""
        self._advance(now_mono_ns)
        metered = self._sessions[session]
        job = metered.job
        self._settle(job)
        job.sums.iteration_count += iteration_count
        if metered.activity is activity:
            return
        if metered.activity is Activity.RUNNING:
            job.sums.busy += self._run - metered.run_from
            self._running_count -= 1
        wanted = job.wants_device
        job.counts[metered.activity] -= 1
        job.counts[activity] += 1
        metered.activity = activity
        if activity is Activity.RUNNING:
            metered.run_from = self._run
            self._running_count += 1
        self._weight_sum += job.weight * (int(job.wants_device) - int(wanted))

    def hand_over(self, session: int) -> None:
        """Count one hand-over away from the session."""
        self._sessions[session].job.sums.handover_count += 1

    def set_memory(self, session: int, persistent_bytes: int, ephemeral_bytes: int, now_mono_ns: int) -> None:
        """The session's peak memory: persistent, and in a lane."""
        self._advance(now_mono_ns)
        metered = self._sessions[session]
        job = metered.job
        self._settle(job)
        job.persistent_bytes += persistent_bytes - metered.persistent_bytes
        job.ephemeral_bytes += ephemeral_bytes - metered.ephemeral_bytes
        self._persistent_bytes += persistent_bytes - metered.persistent_bytes
        metered.persistent_bytes, metered.ephemeral_bytes = persistent_bytes, ephemeral_bytes
        job.sums.persistent_bytes_max = max(job.sums.persistent_bytes_max, job.persistent_bytes)
        job.sums.ephemeral_bytes_max = max(job.sums.ephemeral_bytes_max, job.ephemeral_bytes)

    def set_lane(self, lane: int, lane_bytes: int, now_mono_ns: int) -> None:
        """The size of a lane changes; it is 0 while the lane is parked."""
        self._advance(now_mono_ns)
        metered = self._lanes.setdefault(lane, _Lane(0, since_mono_ns=now_mono_ns))
        self._settle_lane(metered)
        self._lane_bytes += lane_bytes - metered.lane_bytes
        metered.lane_bytes = lane_bytes
        self._forget_unused(lane)

    def bind(self, session: int, lane: int | None, now_mono_ns: int) -> None:
        """The session moves to `lane`, or leaves its lane if `lane` is None."""
        self._advance(now_mono_ns)
        for number, is_in in ((self._sessions[session].lane, False), (lane, True)):
            if number is None:
                continue
            metered = self._lanes.setdefault(number, _Lane(0, since_mono_ns=now_mono_ns))
            self._settle_lane(metered)
            (metered.sessions.add if is_in else metered.sessions.discard)(session)
            self._forget_unused(number)
        self._sessions[session].lane = lane

    def _forget_unused(self, lane: int) -> None:
        """Forget a lane without memory and sessions: lane numbers are never reused, so it would stay forever."""
        if self._lanes[lane].lane_bytes == 0 and not self._lanes[lane].sessions:
            del self._lanes[lane]

    def close(self, now_utc_ns: int, now_mono_ns: int) -> list[Record]:
        """End the interval and begin the next: one record per job that was present, and one for the device."""
        self._advance(now_mono_ns)
        for lane in self._lanes.values():
            self._settle_lane(lane)
        for session in self._sessions.values():
            if session.activity is Activity.RUNNING:
                session.job.sums.busy += self._run - session.run_from
                session.run_from = self._run
        jobs = list(self._jobs.values())
        for job in jobs:
            self._settle(job)
        records = self._records(jobs)
        for job in jobs:
            if job.session_count == 0:
                del self._jobs[job.key]
            else:
                job.sums = _JobSums(self._now_ns, job.persistent_bytes, job.ephemeral_bytes)
        self._begin(now_utc_ns)
        return records

    def _begin(self, now_utc_ns: int) -> None:
        self._start_utc_ns, self._start_mono_ns = now_utc_ns, self._now_ns
        self._busy_ns = self._idle_ns = self._wanted_ns = 0
        self._persistent_byte_ns = self._lane_byte_ns = 0
        self._job_count_max = self._present_count

    def _advance(self, now_mono_ns: int) -> None:
        passed_ns = now_mono_ns - self._now_ns
        assert passed_ns >= 0, "the monotonic clock went backwards"
        if passed_ns == 0:
            return
        self._now_ns = now_mono_ns
        if self._running_count:
            self._busy_ns += passed_ns
            self._run += passed_ns * _ONE // self._running_count
        elif self._present_count:
            self._idle_ns += passed_ns
            self._idle += passed_ns * _ONE // self._charge_sum
        if self._weight_sum:
            self._wanted_ns += passed_ns
            self._entitled += passed_ns * _ONE // self._weight_sum
        self._persistent_byte_ns += self._persistent_bytes * passed_ns
        self._lane_byte_ns += self._lane_bytes * passed_ns

    @property
    def _shares(self) -> tuple[int, int, int]:
        return self._now_ns, self._idle, self._entitled

    def _settle(self, job: _Job) -> None:
        if job.session_count:
            since_ns, idle_from, entitled_from = job.settled
            passed_ns = self._now_ns - since_ns
            sums = job.sums
            sums.spent_ns[job.activity] += passed_ns
            sums.idle += (self._idle - idle_from) * job.charge
            if job.wants_device:
                sums.entitled += (self._entitled - entitled_from) * job.weight
            sums.peak_byte_ns += (job.persistent_bytes + job.ephemeral_bytes) * passed_ns
            sums.held_byte_ns += job.persistent_bytes * passed_ns
        job.settled = self._shares

    def _settle_lane(self, lane: _Lane) -> None:
        byte_ns = lane.lane_bytes * (self._now_ns - lane.since_mono_ns)
        for session in lane.sessions:
            self._sessions[session].job.sums.held_byte_ns += byte_ns // len(lane.sessions)
        lane.since_mono_ns = self._now_ns

    def _records(self, jobs: list[_Job]) -> list[Record]:
        all_sums = [job.sums for job in jobs]
        busy = apportion(self._busy_ns, [sums.busy for sums in all_sums])
        idle = apportion(self._idle_ns, [sums.idle for sums in all_sums])
        entitled = apportion(self._wanted_ns, [sums.entitled for sums in all_sums])
        records: list[Record] = []
        for job, sums, busy_ns, idle_ns, entitled_ns in zip(jobs, all_sums, busy, idle, entitled, strict=True):
            records.append(
                UsageRecord(
                    job=job.key,
                    **self._names,
                    start_utc_ns=self._start_utc_ns + sums.first_mono_ns - self._start_mono_ns,
                    start_mono_ns=sums.first_mono_ns,
                    span_ns=self._now_ns - sums.first_mono_ns,
                    present_ns=sum(sums.spent_ns.values()),
                    running_ns=sums.spent_ns[Activity.RUNNING],
                    wait_ns=sums.spent_ns[Activity.WAITING],
                    suspended_ns=sums.spent_ns[Activity.SUSPENDED],
                    outside_ns=sums.spent_ns[Activity.OUTSIDE],
                    busy_ns=busy_ns,
                    occupied_ns=busy_ns + idle_ns,
                    entitled_ns=entitled_ns,
                    iteration_count=sums.iteration_count,
                    handover_count=sums.handover_count,
                    persistent_bytes_max=sums.persistent_bytes_max,
                    ephemeral_bytes_max=sums.ephemeral_bytes_max,
                    peak_mib_ms=sums.peak_byte_ns // _BYTE_NS_PER_MIB_MS,
                    held_mib_ms=sums.held_byte_ns // _BYTE_NS_PER_MIB_MS,
                )
            )
        span_ns = self._now_ns - self._start_mono_ns
        records.append(
            DeviceUsageRecord(
                cluster=self._cluster,
                **self._names,
                start_utc_ns=self._start_utc_ns,
                start_mono_ns=self._start_mono_ns,
                span_ns=span_ns,
                present_ns=self._busy_ns + self._idle_ns,
                busy_ns=self._busy_ns,
                job_count_max=self._job_count_max,
                capacity_bytes=self._capacity_bytes,
                persistent_bytes_mean=self._persistent_byte_ns // max(1, span_ns),
                lane_bytes_mean=self._lane_byte_ns // max(1, span_ns),
            )
        )
        return records


def apportion(total: int, shares: list[int]) -> list[int]:
    """Round `shares` (in 2**-40) to integers that add up to `total`: the largest remainders are rounded up."""
    floors = [share >> FRACTION_BITS for share in shares]
    missing = total - sum(floors)
    assert 0 <= missing <= len(shares), "shares were lost"
    by_remainder = sorted(range(len(shares)), key=lambda index: -(shares[index] & (_ONE - 1)))
    for index in by_remainder[:missing]:
        floors[index] += 1
    return floors
