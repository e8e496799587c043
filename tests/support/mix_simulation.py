"""The jobs of the side-by-side benchmark in `salus simulate`, and how far the simulation is from the real run.

To simulate a configuration we need the core time that its jobs use. We get it in three ways:

- `alone`: each kind runs alone for a few seconds before the benchmark. The speed of the machine changes by the minute.
- `history`: from the jobs of the same kind in the other configurations of the same side, with Salus or without. An
  admin who asks what another policy would have done has the same data.
- `replay`: from the compared run itself. The difference that remains is the simulator's own error.

We use CPU time for shared devices and wall-clock time for whole ones. The other work of the machine (Slurm, its
Prologs, the daemons) comes in short pieces on any core, so it slows the devices down by its share of the cores.
"""

import csv
import itertools
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from nodedaemon.core.types import MIB, MILLISECOND_NS, SECOND_NS, JobId
from nodedaemon.sim.device import SimulationSetup
from nodedaemon.sim.run import prepare, run_baseline, run_policy
from nodedaemon.sim.workload import Job, Workload, by_submission
from tests.support import mix
from tests.support.mix_job import NICE_WEIGHT
from tests.support.slurm_mix import simulate

POLICIES = ("fifo", "srtf", "fair", "pack")
WHOLE = ("gpu", "gpu-shortest")
PLAIN = (*WHOLE, "shard")
#: The headroom of admission, in percent. Jobs without Salus asked for shards by their measured peak.
HEADROOM = 10
#: The names of the configurations in `salus simulate`.
SIMULATED = {"gpu": "exclusive", "gpu-shortest": "exclusive-sjf", "shard": "peak", **{name: name for name in POLICIES}}
AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")
OTHER_SEEDS = range(2, 22)


@dataclass(frozen=True)
class Demand:
    """The core time of a job's start and of one iteration, and Slurm's delay before the job starts.

    A whole device is held until the next job gets it, so Slurm's delay counts as start. A shared device is used by
    others while Slurm places a job, so the job is simulated as submitted later by `latency_s`, the same for all kinds.
    `beside_s` is the cluster's own work for a job, on any core.
    """

    startup_s: float
    iteration_ms: float
    latency_s: float
    beside_s: float = 0.0


def followers(ended):
    """The jobs that waited for another one on their device, each with the time it held the device after that one."""
    for node in {job.node for job in ended.values()}:
        there = sorted((job for job in ended.values() if job.node == node), key=lambda job: job.ended)
        for before, job in itertools.pairwise(there):
            if job.submitted < before.ended:
                yield job, job.ended - before.ended


def plain_ms(kinds):
    """The time of an iteration of each kind, alone and without Salus."""
    return {name: kind["plain_iteration_ms"] for name, kind in kinds.items()}


def alone(name, kinds, kind_name):
    """The demand of a job in a configuration, from the runs of its kind alone."""
    kind = kinds[kind_name]
    if name in WHOLE:
        return Demand(kind["plain_queued_s"], kind["plain_iteration_ms"], 0.0)
    side = "known" if name in POLICIES else "plain"
    of_all = lambda key: statistics.median(report[f"{side}_{key}"] for report in kinds.values())  # noqa: E731
    return Demand(
        kind[f"{side}_startup_cpu_s"], kind[f"{side}_iteration_ms"], of_all("latency_s"), of_all("beside_cpu_s")
    )


def startups_s(name, jobs, runs):
    """The time of each kind outside its iterations in these runs; the median of all jobs if the kind has none."""
    kind_of, found = {job.name: job.kind.name for job in jobs}, []
    for ended in runs:
        if name in WHOLE:
            found += [(kind_of[job.name], held_s - sum(job.report["spans"])) for job, held_s in followers(ended)]
        else:
            found += [(kind_of[job.name], job.startup_cpu_s) for job in ended.values()]
    overall_s = statistics.median(value for _, value in found)
    values_s = {kind.name: [value for of, value in found if of == kind.name] for kind in mix.KINDS}
    return {kind: statistics.median(values) if values else overall_s for kind, values in values_s.items()}


def iterations_s(name, ended):
    return sum(ended.report["spans"]) if name in WHOLE else ended.report["cpu_s"]


def learned(name, kinds, jobs, runs):
    """The demand of each kind, from what such jobs did in `runs`, by configuration."""
    # Only whole devices show how long a start takes in wall-clock time.
    starts = [ended for other, ended in runs.items() if name not in WHOLE or other in WHOLE]
    if not starts:
        return None
    startup_s, found = startups_s(name, jobs, starts), {}
    beside_s = statistics.mean(job.beside_cpu_s for ended in runs.values() for job in ended.values())
    for kind in mix.KINDS:
        guess = alone(name, kinds, kind.name)
        alike = [job for job in jobs if job.kind is kind]
        spent_s = sum(iterations_s(other, ended[job.name]) for other, ended in runs.items() for job in alike)
        count = len(runs) * sum(job.iterations for job in alike)
        found[kind.name] = Demand(
            startup_s[kind.name],
            spent_s * 1000 / count if count else guess.iteration_ms,
            guess.latency_s,
            0.0 if name in WHOLE else beside_s,
        )
    return found


def like(name, ran):
    """The runs on the same side: with Salus, or without."""
    side = POLICIES if name in POLICIES else PLAIN
    return {other: ended for other, ended in ran.items() if other in side}


def as_it_ran(name, kinds, jobs, ended):
    """The demand of each job in the configuration."""
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
            alone(name, kinds, job.kind.name).latency_s,
            0.0 if name in WHOLE else ended[job.name].beside_cpu_s,
        )
        for job in jobs
    ]


def startup_weight():
    """How much more of a core a job gets while it starts up than while it iterates at a lower priority.

    If the kernel makes each job a group of its own, priorities count only inside a group, and the shares are equal.
    """
    is_grouped = AUTOGROUP.is_file() and AUTOGROUP.read_text().strip() == "1"
    return 1.0 if is_grouped else NICE_WEIGHT


def beside_cluster(simulated, demands):
    """The result of `simulated(slowness)` when the cluster's own work takes its share of the cores all the time."""
    report = simulated(1.0)
    beside_s = sum(demand.beside_s for demand in demands)
    if beside_s:
        share = beside_s / (mix.DEVICE_COUNT * report.makespan_s)
        assert share < 1, f"the cluster's own work fills the cores: {beside_s:.1f} s"
        report = simulated(1 / (1 - share))
    latencies_s = [demand.latency_s for demand in demands]
    average_s = report.average_completion_s + statistics.mean(latencies_s)
    return Forecast(average_s, report.makespan_s + min(latencies_s))


@dataclass(frozen=True)
class Forecast:
    average_completion_s: float
    makespan_s: float


def simulate_jobs(name, kinds, jobs, ran, demands):
    """Average completion and makespan of a configuration in `salus simulate`."""
    begun = min(job.submitted for job in ran.values())
    options = ("--gpus", str(mix.DEVICE_COUNT), "--nodes", str(mix.DEVICE_COUNT), "--gpu-memory",
               f"{mix.DEVICE_MIB}M", "--lane-reserve", f"{mix.LANE_RESERVE_MIB}M", "--startup-weight",
               f"{startup_weight():.2f}", "--headroom", str(HEADROOM if name in POLICIES else 0),
               "--policy", SIMULATED[name] if name in POLICIES else "fifo")  # fmt: skip

    def simulated(slowness):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.csv"
            with path.open("w", newline="") as stream:
                rows = csv.writer(stream)
                rows.writerow(["job", "submit_s", "model", "persistent_mb", "ephemeral_mb", "iteration_ms",
                               "iterations", "startup_s"])  # fmt: skip
                for job, demand in zip(jobs, demands, strict=True):
                    kind, submit_s = kinds[job.kind.name], ran[job.name].submitted - begun + demand.latency_s
                    rows.writerow([job.name, f"{submit_s:.3f}", job.kind.name, kind["persistent_mib"],
                                   kind["ephemeral_mib"], f"{demand.iteration_ms * slowness:.3f}", job.iterations,
                                   f"{demand.startup_s * slowness:.3f}"])  # fmt: skip
            report = simulate(path, *options)[SIMULATED[name]]
        return Forecast(report["average_completion_s"], report["makespan_s"])

    return beside_cluster(simulated, demands)


def predict(kinds, jobs, ran, found, say):
    """The same jobs in `salus simulate`, and how far its average completion is from the real one."""
    predicted = {}
    for name in found:
        ended = ran[name]
        real = {"real_s": found[name]["average_s"], "real_makespan_s": found[name]["makespan_s"]}
        others = {other: report for other, report in like(name, ran).items() if other != name}
        by_kind = learned(name, kinds, jobs, others)
        ways = {
            "alone": [alone(name, kinds, job.kind.name) for job in jobs],
            "history": by_kind and [by_kind[job.kind.name] for job in jobs],
            "replay": as_it_ran(name, kinds, jobs, ended),
        }
        for way, demands in ways.items():
            if demands is not None:
                report = simulate_jobs(name, kinds, jobs, ended, demands)
                error = report.average_completion_s / real["real_s"] - 1
                real[way] = {
                    "average_s": round(report.average_completion_s, 3),
                    "error": round(error, 4),
                    "distance": round(abs(error), 4),
                    "makespan_s": round(report.makespan_s, 3),
                }
        predicted[name] = real
        say(f"{name}: {real}")
    return predicted


def simulated_average_s(name, kinds, demand_of, jobs):
    """Average completion of a configuration in the simulator, for jobs as drawn from a seed."""
    setting = SimulationSetup(
        device_bytes=mix.DEVICE_MIB * MIB, device_count=mix.DEVICE_COUNT, node_count=mix.DEVICE_COUNT,
        lane_reserve_bytes=mix.LANE_RESERVE_MIB * MIB, startup_weight=startup_weight(),
        headroom_percent=HEADROOM if name in POLICIES else 0,
    )  # fmt: skip
    demands = [demand_of[job.kind.name] for job in jobs]

    def simulated(slowness):
        rows = []
        for job, demand in zip(jobs, demands, strict=True):
            kind = kinds[job.kind.name]
            rows.append(
                Job(
                    JobId(job.name), round((job.submit_s + demand.latency_s) * SECOND_NS),
                    round(kind["persistent_mib"] * MIB), round(kind["ephemeral_mib"] * MIB),
                    round(demand.iteration_ms * slowness * MILLISECOND_NS), job.iterations, model=job.kind.name,
                    startup_ns=round(demand.startup_s * slowness * SECOND_NS),
                )
            )  # fmt: skip
        prepared = prepare(Workload("mix", by_submission(rows)), setting)
        return (run_policy if name in POLICIES else run_baseline)(prepared, SIMULATED[name])

    return beside_cluster(simulated, demands).average_completion_s


def learned_of_all(kinds, jobs, ran):
    """The demand of each kind in each configuration that is compared, from all runs on its side."""
    return {
        name: learned(name, kinds, jobs, like(name, ran)) or {kind: alone(name, kinds, kind) for kind in kinds}
        for name in (*PLAIN, "srtf")
    }


def simulated_gains(kinds, demands, jobs):
    """By how much srtf is better in the simulator than each configuration without Salus."""
    shortest_s = simulated_average_s("srtf", kinds, demands["srtf"], jobs)
    return {name: round(simulated_average_s(name, kinds, demands[name], jobs) / shortest_s, 3) for name in PLAIN}


def other_draws(kinds, demands, *, in_random_order):
    """The gain of srtf in the simulator for other seeds, which shows how typical the measured seed is."""
    drawn = [mix.mix(plain_ms(kinds), seed, in_random_order=in_random_order) for seed in OTHER_SEEDS]
    gains = [simulated_gains(kinds, demands, jobs) for jobs in drawn]
    found = {}
    for name in PLAIN:
        values = [gain[name] for gain in gains]
        found[name] = {
            "min": round(min(values), 2),
            "median": round(statistics.median(values), 2),
            "max": round(max(values), 2),
        }
    return found
