"""Runs a workload under each policy and baseline on the same devices, and summarizes the results.

Memory arithmetic, charges, admission, lanes and grants are the core's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nodedaemon.core.admission import Admit, DeviceView, admit
from nodedaemon.core.errors import RequestError
from nodedaemon.core.memory import auto_reserve, device_units, round_up, with_headroom
from nodedaemon.core.policies import POLICIES
from nodedaemon.core.types import DeviceId, DeviceLimits
from nodedaemon.sim.device import SimulatedDevice, SimulationSetup
from nodedaemon.sim.gated_device import GatedDevice
from nodedaemon.sim.job_queue import DevicePool, bins_needed
from nodedaemon.sim.results import RunResult, ShareMeter, Turn, summarize
from nodedaemon.sim.site import Site
from nodedaemon.sim.ungated_device import UngatedDevice
from nodedaemon.sim.workload import Job, Workload

#: Jain's index needs the progress of every device at every arrival and end. With more devices that takes too long.
METERED_DEVICES_MAX = 8
BASELINES = ("exclusive", "exclusive-sjf", "peak")
#: A turn of a replayed job may last hours; nothing in a simulation hangs.
_NEVER_NS = 1 << 62
#: An error lists at most this many of the jobs that no device can hold.
_REFUSED_SHOWN_MAX = 20

#: Called with the name of the policy or baseline, the number of jobs that have ended, and the number of all jobs.
Progress = Callable[[str, int, int], None]


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
    """Add contexts and headroom, merge iterations into turns, choose R and compute the charges.

    Raises `RequestError` that lists every job that no device can hold: comparing different jobs would mislead.
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
            # The job takes whole devices, outside Salus. `JobQueue` counts devices for it, not shards.
            charges.append(view.units_total)
            peaks.append(bare.units_total)
            if job.device_count > setup.device_count:
                refused.append(f"job {job.id}: devices: {job.device_count} needed, {setup.device_count} available")
            continue
        decision, by_peak = (admit(job.persistent_bytes, job.ephemeral_bytes, device) for device in (view, bare))
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
            f"simulate: {workload.name}: {len(refused)} jobs fit no device, so nothing was run; raise --gpu-memory or "
            "change --lane-reserve\n" + "\n".join(shown)
        )
    units = device_units(setup.device_bytes, reserve, setup.unit_bytes)
    return Prepared(workload.with_jobs(jobs), setup, reserve, units, tuple(charges), tuple(peaks))


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
    prepared: Prepared, policy: str, progress: Progress | None = None, on_turn: Callable[[Turn], None] | None = None
) -> RunResult:
    """Simulate the engine with `policy` on every device. Calls `on_turn` with every turn that ends."""
    setup = prepared.setup
    limits = DeviceLimits(
        capacity_bytes=setup.device_bytes,
        lane_reserve_bytes=prepared.lane_reserve_bytes,
        lanes_max=setup.lanes_max,
        policy=policy,
        hang_timeout_ns=_NEVER_NS,
    )
    devices: list[GatedDevice] = []

    def make_device(number: int, site: Site) -> GatedDevice:
        devices.append(GatedDevice(number, site, setup, limits, on_turn))
        return devices[-1]

    result = _run(prepared, policy, range(len(prepared.jobs)), make_device, progress)
    return replace(
        result,
        hand_overs=sum(device.hand_over_count for device in devices),
        lane_openings=sum(device.opening_count for device in devices),
    )


def run_baseline(prepared: Prepared, name: str, progress: Progress | None = None) -> RunResult:
    """Simulate sharing without lanes; see `BASELINES`."""
    jobs, order = prepared.jobs, list(range(len(prepared.jobs)))
    if name == "exclusive-sjf":
        order.sort(key=lambda number: jobs[number].solo_ns)
    return _run(prepared, name, order, lambda number, site: UngatedDevice(number, site, prepared.setup), progress)


def _run(
    prepared: Prepared,
    name: str,
    order: Sequence[int],
    make_device: Callable[[int, Site], SimulatedDevice[Any]],
    progress: Progress | None,
) -> RunResult:
    setup, jobs = prepared.setup, prepared.jobs
    units, charges = prepared.shares(name)
    pool = DevicePool(setup.device_count, setup.node_count, units, setup.spread)
    meter = ShareMeter() if setup.device_count <= METERED_DEVICES_MAX else None
    site = Site(jobs, pool, charges, order, meter, make_device)
    site.run(None if progress is None else lambda ended_count: progress(name, ended_count, len(jobs)))
    return summarize(name, prepared.workload.name, site.times, devices_needed(prepared, name), meter)


def simulate(prepared: Prepared, policies: tuple[str, ...], progress: Progress | None = None) -> list[RunResult]:
    """Run every requested policy, then every baseline."""
    unknown = [name for name in policies if name not in POLICIES]
    if unknown:
        raise RequestError(f"simulate: policy {', '.join(unknown)}: unknown; use any of {', '.join(sorted(POLICIES))}")
    results = [run_policy(prepared, name, progress) for name in policies]
    return results + [run_baseline(prepared, name, progress) for name in BASELINES]


def devices_needed(prepared: Prepared, name: str) -> int:
    """The number of devices that hold all jobs at once, under a baseline or, for any other name, a policy."""
    units, charges = prepared.shares(name)
    shared = [charge for charge, job in zip(charges, prepared.jobs, strict=True) if job.device_count == 1]
    return bins_needed(shared, units) + sum(job.device_count for job in prepared.jobs if job.device_count > 1)
