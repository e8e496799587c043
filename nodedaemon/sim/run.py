"""Run a workload under each policy and baseline, on the same devices, and sum up.

Memory arithmetic, charges and admission come from the core; so do lanes and grants, by way of nodedaemon.sim.world.
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
from nodedaemon.sim.clock import Clock
from nodedaemon.sim.line import Room, Spread, bins_needed
from nodedaemon.sim.results import Outcome, ShareMeter, outcome
from nodedaemon.sim.site import METERED_DEVICES_MAX, Runner, Site
from nodedaemon.sim.speed import Speeds
from nodedaemon.sim.workload import Job, Workload
from nodedaemon.sim.world import Rules, Turn, World

BASELINES = ("exclusive", "exclusive-sjf", "peak")
#: A turn of a replayed job may last hours; nothing in a simulation hangs.
_NEVER_NS = 1 << 62
#: Jobs that no device can hold are named up to this many.
_REFUSED_SHOWN_MAX = 20

#: Called with the name of what runs, jobs ended and jobs in all.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Setting:
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
    setting: Setting
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
            return device_units(self.setting.device_bytes, 0, self.setting.unit_bytes), self.peak_charges
        if name in BASELINES:
            return 1, (1,) * len(self.jobs)
        return self.device_units, self.charges


def prepare(workload: Workload, setting: Setting) -> Prepared:
    """Add contexts and headroom, lump turns, choose R and compute the charges.

    Raises `RequestError` with every job that no device can hold: a comparison over different jobs would mislead.
    """
    jobs = [_sized(job, setting) for job in workload.jobs]
    reserve = setting.lane_reserve_bytes
    if reserve is None:
        reserve = auto_reserve(
            [job.profile for job in jobs if job.device_count == 1], setting.device_bytes, setting.unit_bytes
        )
    if not 0 <= reserve < setting.device_bytes:
        raise RequestError(
            f"simulate: lane reserve {reserve}: not smaller than the device's {setting.device_bytes} bytes; "
            "choose a smaller --lane-reserve or auto"
        )
    view = DeviceView(DeviceId("any"), setting.device_bytes, reserve, setting.unit_bytes)
    bare = DeviceView(DeviceId("any"), setting.device_bytes, 0, setting.unit_bytes)
    charges, peaks, refused = [], [], []
    for job in jobs:
        if job.device_count > 1:
            # Takes whole devices, outside Salus; Line counts them, not their shards.
            charges.append(view.units_total)
            peaks.append(bare.units_total)
            if job.device_count > setting.device_count:
                refused.append(f"job {job.id}: devices: {job.device_count} needed, {setting.device_count} there")
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
    units = device_units(setting.device_bytes, reserve, setting.unit_bytes)
    return Prepared(workload.having(jobs), setting, reserve, units, tuple(charges), tuple(peaks))


def _sized(job: Job, setting: Setting) -> Job:
    if setting.turns_per_job is not None:
        job = job.in_turns(setting.turns_per_job)
    job = job.with_context(setting.context_bytes)
    return replace(
        job,
        persistent_bytes=with_headroom(job.persistent_bytes, setting.headroom_percent),
        ephemeral_bytes=max(round_up(1), with_headroom(job.ephemeral_bytes, setting.headroom_percent)),
    )


def run_policy(
    prepared: Prepared, policy: str, progress: Progress | None = None, watch: Callable[[Turn], None] | None = None
) -> Outcome:
    """Simulate the engine with `policy` on every device; `watch` is told of every turn as it ends."""
    setting = prepared.setting
    limits = DeviceLimits(
        capacity_bytes=setting.device_bytes,
        lane_reserve_bytes=prepared.lane_reserve_bytes,
        lanes_max=setting.lanes_max,
        policy=policy,
        hang_timeout_ns=_NEVER_NS,
    )
    rules = Rules(limits, setting.lane_sharing, setting.is_single_step, setting.startup_weight)
    clock, speeds, meter = Clock(), Speeds(setting.pair_speeds), _meter(prepared)
    site = Site(
        prepared.jobs,
        clock,
        Room(setting.device_count, setting.node_count, prepared.device_units, setting.spread),
        prepared.charges,
        range(len(prepared.jobs)),
        meter,
        _counted(progress, policy, prepared),
    )
    worlds: list[World] = []

    def make(number: int, ended: Callable[[int], None]) -> Runner:
        worlds.append(World(number, clock, rules, speeds, meter, ended, watch))
        return worlds[-1]

    site.run(make)
    return outcome(
        policy,
        prepared.workload.name,
        site.records,
        devices_needed(prepared, policy),
        meter,
        hand_overs=sum(world.hand_over_count for world in worlds),
        lane_openings=sum(world.opening_count for world in worlds),
    )


def run_baseline(prepared: Prepared, name: str, progress: Progress | None = None) -> Outcome:
    """Simulate sharing without lanes; see `BASELINES`."""
    setting, jobs = prepared.setting, prepared.jobs
    clock, speeds, meter = Clock(), Speeds(setting.pair_speeds), _meter(prepared)
    numbers = range(len(jobs))
    units, charges = prepared.shares(name)
    order = sorted(numbers, key=lambda n: (jobs[n].solo_ns, n)) if name == "exclusive-sjf" else list(numbers)
    room = Room(setting.device_count, setting.node_count, units, setting.spread)
    site = Site(jobs, clock, room, charges, order, meter, _counted(progress, name, prepared))
    weight = setting.startup_weight
    site.run(lambda number, ended: UngatedDevice(number, clock, speeds, meter, ended, startup_weight=weight))
    return outcome(name, prepared.workload.name, site.records, devices_needed(prepared, name), meter)


def simulate(prepared: Prepared, policies: tuple[str, ...], progress: Progress | None = None) -> list[Outcome]:
    """Every policy asked for, then every baseline."""
    unknown = [name for name in policies if name not in POLICIES]
    if unknown:
        raise RequestError(
            f"simulate: policy {', '.join(unknown)}: not known; use some of {', '.join(sorted(POLICIES))}"
        )
    outcomes = [run_policy(prepared, name, progress) for name in policies]
    return outcomes + [run_baseline(prepared, name, progress) for name in BASELINES]


def devices_needed(prepared: Prepared, name: str) -> int:
    """Devices on which all jobs can be at once: by a baseline's rule, or by that of the engine for any other name."""
    units, charges = prepared.shares(name)
    shared = [charge for charge, job in zip(charges, prepared.jobs, strict=True) if job.device_count == 1]
    return bins_needed(shared, units) + sum(job.device_count for job in prepared.jobs if job.device_count > 1)


def _meter(prepared: Prepared) -> ShareMeter | None:
    return ShareMeter() if prepared.setting.device_count <= METERED_DEVICES_MAX else None


def _counted(progress: Progress | None, name: str, prepared: Prepared) -> Callable[[int], None] | None:
    if progress is None:
        return None
    return lambda ended_count: progress(name, ended_count, len(prepared.jobs))
