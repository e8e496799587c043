"""The jobs of the side-by-side in `salus simulate`, and how far it is from what really ran.

A configuration is simulated with what its jobs ask of a core, learned in three ways:

- `alone`: from each kind's few seconds alone before the run, on a machine whose speed changes by the minute;
- `history`: from the jobs of the same kind in the other configurations of the run, as an admin has them who asks what
  another policy would have done;
- `replay`: from the very run that is compared. What is left then is the simulator's own error.

Processor time is counted where devices are shared, and all of it: what the machine did beside the jobs (Slurm, its
Prologs, the daemons) is shared out among them, for it runs on the devices' cores here. Whole devices go by the clock.
"""

import csv
import itertools
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from nodedaemon.core.types import MIB, MILLISECOND_NS, SECOND_NS, JobId
from nodedaemon.sim.run import Setting, prepare, run_baseline, run_policy
from nodedaemon.sim.workload import Job, Workload, by_submission
from tests.support import mix
from tests.support.mix_job import NICE_WEIGHT
from tests.support.slurm_mix import simulate

POLICIES = ("fifo", "srtf", "fair", "pack")
WHOLE = ("gpu", "gpu-shortest")
#: What `salus simulate` calls the configurations.
SIMULATED = {"gpu": "exclusive", "gpu-shortest": "exclusive-sjf", "shard": "peak", **{name: name for name in POLICIES}}
AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")
OTHER_SEEDS = range(2, 22)


@dataclass(frozen=True)
class Demand:
    """What a job asks of a core: its start, an iteration, and what it loses to Slurm before it takes the core.

    A whole device is held until the next job has it, so there all of it counts as start. Where devices are shared
    nobody misses the core while Slurm places a job: it is submitted later by that time, which is one for all kinds.
    """

    startup_s: float
    iteration_ms: float
    latency_s: float


def followers(ended):
    """Jobs that waited for another one on their device, each with how long it held the device after that one."""
    for node in {job.node for job in ended.values()}:
        there = sorted((job for job in ended.values() if job.node == node), key=lambda job: job.ended)
        for before, job in itertools.pairwise(there):
            if job.submitted < before.ended:
                yield job, job.ended - before.ended


def plain_ms(kinds):
    """What an iteration of each kind takes alone and plain."""
    return {name: kind["plain_iteration_ms"] for name, kind in kinds.items()}


def alone(name, kinds, job):
    """What a job will ask of a core in a configuration, by the runs of its kind alone."""
    kind = kinds[job.kind.name]
    if name in WHOLE:
        return Demand(kind["plain_queued_s"], kind["plain_iteration_ms"], 0.0)
    side = "known" if name in POLICIES else "plain"
    lost_s = [max(0.0, told[f"{side}_startup_s"] - told[f"{side}_startup_cpu_s"]) for told in kinds.values()]
    return Demand(kind[f"{side}_startup_cpu_s"], kind[f"{side}_iteration_ms"], statistics.median(lost_s))


def startups_s(name, jobs, runs):
    """What a job of each kind cost beside its iterations in these runs; the median of all where no job tells."""
    kind_of, found = {job.name: job.kind.name for job in jobs}, []
    for ended in runs:
        if name in WHOLE:
            found += [(kind_of[job.name], held_s - sum(job.told["spans"])) for job, held_s in followers(ended)]
        else:
            found += [(kind_of[job.name], job.startup_cpu_s) for job in ended.values()]
    overall_s = statistics.median(value for _, value in found)
    values_s = {kind.name: [value for of, value in found if of == kind.name] for kind in mix.KINDS}
    return {kind: statistics.median(values) if values else overall_s for kind, values in values_s.items()}


def iterations_s(name, ended):
    return sum(ended.told["spans"]) if name in WHOLE else ended.told["cpu_s"]


def by_history(name, kinds, jobs, runs):
    """What each job will ask of a core, by what the jobs of its kind did in other runs."""
    startup_s, per_kind_ms = startups_s(name, jobs, runs), {}
    for kind in {job.kind for job in jobs}:
        alike = [job for job in jobs if job.kind is kind]
        spent_s = sum(iterations_s(name, ended[job.name]) for ended in runs for job in alike)
        per_kind_ms[kind] = spent_s * 1000 / (len(runs) * sum(job.iterations for job in alike))
    return [Demand(startup_s[job.kind.name], per_kind_ms[job.kind], alone(name, kinds, job).latency_s) for job in jobs]


def as_it_ran(name, kinds, jobs, ended):
    """What each job asked of a core in the configuration."""
    if name in WHOLE:
        of_kind_s = startups_s(name, jobs, [ended])
        startup_s = {job.name: of_kind_s[job.kind.name] for job in jobs}
        startup_s |= {job.name: held_s - iterations_s(name, job) for job, held_s in followers(ended)}
    else:
        startup_s = {job.name: job.startup_cpu_s for job in ended.values()}
    return [
        Demand(
            startup_s[job.name],
            iterations_s(name, ended[job.name]) * 1000 / job.iterations,
            alone(name, kinds, job).latency_s,
        )
        for job in jobs
    ]


def startup_weight():
    """How much more of a core a job gets that starts up than one that iterates, which has lowered its priority.

    Not more where the kernel makes each job of Slurm a group of its own: priorities count only inside a group then.
    """
    is_grouped = AUTOGROUP.is_file() and AUTOGROUP.read_text().strip() == "1"
    return 1.0 if is_grouped else NICE_WEIGHT


def simulate_jobs(name, kinds, jobs, ran, demands):
    """Average completion and makespan of a configuration in `salus simulate`."""
    begun = min(job.submitted for job in ran.values())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.csv"
        with path.open("w", newline="") as stream:
            rows = csv.writer(stream)
            rows.writerow(["job", "submit_s", "model", "persistent_mb", "ephemeral_mb", "iteration_ms", "iterations",
                           "startup_s"])  # fmt: skip
            for job, demand in zip(jobs, demands, strict=True):
                kind, submit_s = kinds[job.kind.name], ran[job.name].submitted - begun + demand.latency_s
                rows.writerow([job.name, f"{submit_s:.3f}", job.kind.name, kind["persistent_mib"],
                               kind["ephemeral_mib"], f"{demand.iteration_ms:.3f}", job.iterations,
                               f"{demand.startup_s:.3f}"])  # fmt: skip
        options = ("--gpus", str(mix.DEVICE_COUNT), "--nodes", str(mix.DEVICE_COUNT), "--gpu-memory",
                   f"{mix.DEVICE_MIB}M", "--lane-reserve", f"{mix.LANE_RESERVE_MIB}M", "--startup-weight",
                   f"{startup_weight():.2f}", "--policy", SIMULATED[name] if name in POLICIES else "fifo")  # fmt: skip
        told = simulate(path, *options)[SIMULATED[name]]
    latencies_s = [demand.latency_s for demand in demands]
    return told["average_completion_s"] + statistics.mean(latencies_s), told["makespan_s"] + min(latencies_s)


def predict(kinds, jobs, ran, found, say):
    """The same jobs in `salus simulate`, and how far its average completion is from the real one."""
    predicted = {}
    for name, ended in ran.items():
        real = {"real_s": found[name]["average_s"], "real_makespan_s": found[name]["makespan_s"]}
        alike = POLICIES if name in POLICIES else WHOLE
        others = [ran[other] for other in alike if other != name and other in ran]
        ways = {
            "alone": [alone(name, kinds, job) for job in jobs],
            "history": by_history(name, kinds, jobs, others) if others else None,
            "replay": as_it_ran(name, kinds, jobs, ended),
        }
        for way, demands in ways.items():
            if demands is not None:
                average_s, makespan_s = simulate_jobs(name, kinds, jobs, ended, demands)
                real[way] = {
                    "average_s": round(average_s, 3),
                    "error": round(average_s / real["real_s"] - 1, 4),
                    "makespan_s": round(makespan_s, 3),
                }
        predicted[name] = real
        say(f"{name}: {real}")
    return predicted


def simulated_average_s(name, kinds, jobs):
    """Average completion of a configuration in the simulator, for jobs as they were drawn."""
    setting = Setting(
        device_bytes=mix.DEVICE_MIB * MIB, device_count=mix.DEVICE_COUNT, node_count=mix.DEVICE_COUNT,
        lane_reserve_bytes=mix.LANE_RESERVE_MIB * MIB, startup_weight=startup_weight(),
    )  # fmt: skip
    rows, latencies_s = [], []
    for job in jobs:
        kind = kinds[job.kind.name]
        demand = alone(name, kinds, job)
        latencies_s.append(demand.latency_s)
        submit_ns = round((job.submit_s + demand.latency_s) * SECOND_NS)
        rows.append(
            Job(
                JobId(job.name), submit_ns, round(kind["persistent_mib"] * MIB), round(kind["ephemeral_mib"] * MIB),
                round(demand.iteration_ms * MILLISECOND_NS), job.iterations, model=job.kind.name,
                startup_ns=round(demand.startup_s * SECOND_NS),
            )
        )  # fmt: skip
    prepared = prepare(Workload("mix", by_submission(rows)), setting)
    run = run_policy if name in POLICIES else run_baseline
    return run(prepared, SIMULATED[name]).average_completion_s + statistics.mean(latencies_s)


def other_draws(kinds, *, in_random_order):
    """The gain of srtf in the simulator for other seeds: how special the one that ran is."""
    gains = {"gpu": [], "gpu-shortest": [], "shard": []}
    for seed in OTHER_SEEDS:
        jobs = mix.mix(plain_ms(kinds), seed, in_random_order=in_random_order)
        shortest_s = simulated_average_s("srtf", kinds, jobs)
        for name, values in gains.items():
            values.append(simulated_average_s(name, kinds, jobs) / shortest_s)
    return {
        name: {
            "min": round(min(values), 2),
            "median": round(statistics.median(values), 2),
            "max": round(max(values), 2),
        }
        for name, values in gains.items()
    }
