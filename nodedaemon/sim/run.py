"""Runs a workload under each policy and baseline on the same devices, and summarizes the results.

Memory arithmetic, charges, admission, lanes and grants are the core's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from nodedaemon.core.admission import Admit, DeviceView, JobRequest, admit
from nodedaemon.core.errors import RequestError
from nodedaemon.core.memory import SHARD_UNIT_BYTES, auto_reserve, device_units, round_up, with_headroom
from nodedaemon.core.policies import POLICIES
from nodedaemon.core.types import DeviceId, DeviceLimits, LaneSharing
from nodedaemon.sim.baselines import UngatedDevice
from nodedaemon.sim.clock import VirtualClock
from nodedaemon.sim.gated_device import DeviceRules, GatedDevice, Turn
from nodedaemon.sim.line import Room, Spread, bins_needed
from nodedaemon.sim.results import RunResult, ShareMeter, summarize
from nodedaemon.sim.site import METERED_DEVICES_MAX, Runner, Site
from nodedaemon.sim.speed import Speeds
from nodedaemon.sim.workload import Job, Workload

BASELINES = ("exclusive", "exclusive-sjf", "peak")
#: A turn of a replayed job may last hours; nothing in a simulation hangs.
_NEVER_NS = 1 << 62
#: Jobs that no device can hold are named up to this many.
_REFUSED_SHOWN_MAX = 20

#: Called with the name of what runs, jobs ended and jobs in all.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class SimulationSetup:
    """The devices and what is assumed of them. `lane_reserve_bytes` None means auto."""

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
    #: Of a job that starts up on the device's cores, as on a host device, against a running iteration; 0: elsewhere.
    startup_weight: float = 0.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A workload with the sizes that it is admitted with, and its charges."""

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
        """Units of a device, and how many each job takes of them, under a baseline or, for any other name, a policy."""
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
            # Takes whole devices, outside Salus; Line counts them, not their shards.
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
    """Simulate the engine with `policy` on every device; `watch` is told of every turn as it ends."""
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
    clock, meter = VirtualClock(), _meter(prepared)
    site = Site(
        prepared.jobs,
        clock,
        Room(setup.device_count, setup.node_count, prepared.device_units, setup.spread),
        prepared.charges,
        range(len(prepared.jobs)),
        meter,
    )
    devices: list[GatedDevice] = []

    def make(number: int, ended: Callable[[int], None]) -> Runner:
        devices.append(GatedDevice(number, clock, rules, meter, ended, watch))
        return devices[-1]

    site.run(make, _counted(progress, policy, prepared))
    return summarize(
        policy,
        prepared.workload.name,
        site.times,
        devices_needed(prepared, policy),
        meter,
        hand_overs=sum(device.hand_over_count for device in devices),
        lane_openings=sum(device.opening_count for device in devices),
    )


def run_baseline(prepared: Prepared, name: str, progress: Progress | None = None) -> RunResult:
    """Simulate sharing without lanes; see `BASELINES`."""
    setup, jobs = prepared.setup, prepared.jobs
    clock, speeds, meter = VirtualClock(), Speeds(setup.pair_speeds), _meter(prepared)
    numbers = range(len(jobs))
    units, charges = prepared.shares(name)
    order = sorted(numbers, key=lambda n: (jobs[n].solo_ns, n)) if name == "exclusive-sjf" else list(numbers)
    room = Room(setup.device_count, setup.node_count, units, setup.spread)
    site = Site(jobs, clock, room, charges, order, meter)

    def make(number: int, ended: Callable[[int], None]) -> Runner:
        return UngatedDevice(number, clock, speeds, meter, ended, startup_weight=setup.startup_weight)

    site.run(make, _counted(progress, name, prepared))
    return summarize(name, prepared.workload.name, site.times, devices_needed(prepared, name), meter)


def simulate(prepared: Prepared, policies: tuple[str, ...], progress: Progress | None = None) -> list[RunResult]:
    """Every policy asked for, then every baseline."""
    unknown = [name for name in policies if name not in POLICIES]
    if unknown:
        raise RequestError(
            f"simulate: policy {', '.join(unknown)}: not known; use some of {', '.join(sorted(POLICIES))}"
        )
    results = [run_policy(prepared, name, progress) for name in policies]
    return results + [run_baseline(prepared, name, progress) for name in BASELINES]


def devices_needed(prepared: Prepared, name: str) -> int:
    """Devices on which all jobs can be at once: by a baseline's rule, or by that of the engine for any other name."""
    units, charges = prepared.shares(name)
    shared = [charge for charge, job in zip(charges, prepared.jobs, strict=True) if job.device_count == 1]
    return bins_needed(shared, units) + sum(job.device_count for job in prepared.jobs if job.device_count > 1)


def _meter(prepared: Prepared) -> ShareMeter | None:
    return ShareMeter() if prepared.setup.device_count <= METERED_DEVICES_MAX else None


def _counted(progress: Progress | None, name: str, prepared: Prepared) -> Callable[[int], None] | None:
    if progress is None:
        return None
    return lambda ended_count: progress(name, ended_count, len(prepared.jobs))
