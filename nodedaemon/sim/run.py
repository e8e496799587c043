"""Runs a workload under each policy and baseline on the same devices, and summarizes the results.

Memory arithmetic, charges, admission, lanes and grants are the core's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from nodedaemon.core.admission import Admit, DeviceView, JobRequest, admit
from nodedaemon.core.errors import RequestError
from nodedaemon.core.memory import SHARD_UNIT_BYTES, auto_reserve, device_units, round_up, with_headroom
from nodedaemon.core.policies import POLICIES
from nodedaemon.core.types import DeviceId, DeviceLimits, LaneSharing
from nodedaemon.sim.baselines import UngatedDevice
from nodedaemon.sim.gated_device import DeviceRules, GatedDevice, Turn
from nodedaemon.sim.line import Room, Spread, bins_needed
from nodedaemon.sim.results import RunResult, ShareMeter, summarize
from nodedaemon.sim.site import METERED_DEVICES_MAX, Runner, Site
from nodedaemon.sim.speed import Speeds
from nodedaemon.sim.workload import Job, Workload

BASELINES = ("exclusive", "exclusive-sjf", "peak")
#: A turn of a replayed job may last hours; nothing in a simulation hangs.
_NEVER_NS = 1 << 62
#: An error lists at most this many of the jobs that no device can hold.
_REFUSED_SHOWN_MAX = 20

#: Called with the name of the policy or baseline, the number of jobs that have ended, and the number of all jobs.
Progress = Callable[[str, int, int], None]


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
    is_single_step: bool = False
    #: As `DeviceRules.startup_weight`.
    startup_weight: float = 0.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A workload whose jobs have the sizes that admission uses, and their charges."""

    workload: Workload
    setup: SimulationSetup
    lane_reserve_bytes: int
    device_units: int
    charges: tuple[int, ...]
    peak_charges: tuple[int, ...]

    @property
    def jobs(self) -> tuple[Job, ...]:
        return self.workload.jobs

    def shares(self, name: str) -> tuple[int, tuple[int, ...]]:
        """The units of a device and the units of each job, under a baseline or, for any other name, a policy."""
        if name == "peak":
            return device_units(self.setup.device_bytes, 0, self.setup.unit_bytes), self.peak_charges
        if name in BASELINES:
            return 1, (1,) * len(self.jobs)
        return self.device_units, self.charges


def prepare(workload: Workload, setup: SimulationSetup) -> Prepared:
    """Add contexts and headroom, lump turns, choose R and compute the charges.

    Raises `RequestError` with every job that no device can hold: a comparison over different jobs would mislead.
    """
    jobs = [_sized(job, setup) for job in workload.jobs]
    reserve = setup.lane_reserve_bytes
    if reserve is None:
        reserve = auto_reserve(
            [job.profile for job in jobs if job.device_count == 1], setup.device_bytes, setup.unit_bytes
        )
    if not 0 <= reserve < setup.device_bytes:
        raise RequestError(
            f"simulate: lane reserve {reserve}: not smaller than the device's {setup.device_bytes} bytes; "
            "choose a smaller --lane-reserve or auto"
        )
    view = DeviceView(DeviceId("any"), setup.device_bytes, reserve, setup.unit_bytes)
    bare = DeviceView(DeviceId("any"), setup.device_bytes, 0, setup.unit_bytes)
    charges, peaks, refused = [], [], []
    for job in jobs:
        if job.device_count > 1:
            # The job takes whole devices, outside Salus. `Line` counts devices for it, not shards.
            charges.append(view.units_total)
            peaks.append(bare.units_total)
            if job.device_count > setup.device_count:
                refused.append(f"job {job.id}: devices: {job.device_count} needed, {setup.device_count} there")
            continue
        request = JobRequest(job.persistent_bytes, job.ephemeral_bytes)
        decision, by_peak = admit(request, view), admit(request, bare)
        if isinstance(decision, Admit) and isinstance(by_peak, Admit):
            charges.append(decision.charge_units)
            peaks.append(by_peak.charge_units)
        else:
            shortfalls = [s.text() for d in (decision, by_peak) if not isinstance(d, Admit) for s in d.shortfalls]
            refused.append(f"job {job.id}: {'; '.join(dict.fromkeys(shortfalls))}")
    if refused:
        shown = refused[:_REFUSED_SHOWN_MAX]
        if len(refused) > len(shown):
            shown.append(f"... and {len(refused) - len(shown)} more")
        raise RequestError(
            f"simulate: {workload.name}: {len(refused)} jobs fit no device, nothing was run; raise --gpu-memory or "
            "change --lane-reserve\n" + "\n".join(shown)
        )
    units = device_units(setup.device_bytes, reserve, setup.unit_bytes)
    return Prepared(workload.having(jobs), setup, reserve, units, tuple(charges), tuple(peaks))


def _sized(job: Job, setup: SimulationSetup) -> Job:
    if setup.turns_per_job is not None:
        job = job.in_turns(setup.turns_per_job)
    job = job.with_context(setup.context_bytes)
    return replace(
        job,
        persistent_bytes=with_headroom(job.persistent_bytes, setup.headroom_percent),
        ephemeral_bytes=max(round_up(1), with_headroom(job.ephemeral_bytes, setup.headroom_percent)),
    )


def run_policy(
    prepared: Prepared, policy: str, progress: Progress | None = None, watch: Callable[[Turn], None] | None = None
) -> RunResult:
    """Simulate the engine with `policy` on every device. `watch` gets every turn as it ends."""
    setup = prepared.setup
    limits = DeviceLimits(
        capacity_bytes=setup.device_bytes,
        lane_reserve_bytes=prepared.lane_reserve_bytes,
        lanes_max=setup.lanes_max,
        policy=policy,
        hang_timeout_ns=_NEVER_NS,
    )
    speeds = Speeds(setup.pair_speeds)
    rules = DeviceRules(limits, speeds, setup.lane_sharing, setup.is_single_step, setup.startup_weight)
    devices: list[GatedDevice] = []

    def make(number: int, site: Site) -> Runner:
        devices.append(GatedDevice(number, site.clock, rules, site.meter, site.ended, watch))
        return devices[-1]

    result = _run(prepared, policy, range(len(prepared.jobs)), make, progress)
    return replace(
        result,
        hand_overs=sum(device.hand_over_count for device in devices),
        lane_openings=sum(device.opening_count for device in devices),
    )


def run_baseline(prepared: Prepared, name: str, progress: Progress | None = None) -> RunResult:
    """Simulate sharing without lanes; see `BASELINES`."""
    setup, jobs = prepared.setup, prepared.jobs
    speeds, numbers = Speeds(setup.pair_speeds), range(len(jobs))
    order = sorted(numbers, key=lambda n: (jobs[n].solo_ns, n)) if name == "exclusive-sjf" else numbers

    def make(number: int, site: Site) -> Runner:
        return UngatedDevice(number, site.clock, speeds, site.meter, site.ended, startup_weight=setup.startup_weight)

    return _run(prepared, name, order, make, progress)


def _run(
    prepared: Prepared,
    name: str,
    order: Sequence[int],
    make_runner: Callable[[int, Site], Runner],
    progress: Progress | None,
) -> RunResult:
    setup, jobs = prepared.setup, prepared.jobs
    units, charges = prepared.shares(name)
    room = Room(setup.device_count, setup.node_count, units, setup.spread)
    meter = ShareMeter() if setup.device_count <= METERED_DEVICES_MAX else None
    site = Site(jobs, room, charges, order, meter, make_runner)
    site.run(None if progress is None else lambda ended_count: progress(name, ended_count, len(jobs)))
    return summarize(name, prepared.workload.name, site.times, devices_needed(prepared, name), meter)


def simulate(prepared: Prepared, policies: tuple[str, ...], progress: Progress | None = None) -> list[RunResult]:
    """Run every requested policy, then every baseline."""
    unknown = [name for name in policies if name not in POLICIES]
    if unknown:
        raise RequestError(f"simulate: policy {', '.join(unknown)}: unknown; use some of {', '.join(sorted(POLICIES))}")
    results = [run_policy(prepared, name, progress) for name in policies]
    return results + [run_baseline(prepared, name, progress) for name in BASELINES]


def devices_needed(prepared: Prepared, name: str) -> int:
    """The number of devices that hold all jobs at once, under a baseline or, for any other name, a policy."""
    units, charges = prepared.shares(name)
    shared = [charge for charge, job in zip(charges, prepared.jobs, strict=True) if job.device_count == 1]
    return bins_needed(shared, units) + sum(job.device_count for job in prepared.jobs if job.device_count > 1)
