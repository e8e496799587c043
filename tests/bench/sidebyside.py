"""The same PyTorch jobs by gres/gpu, by gres/shard and by Salus, on one Slurm cluster in one run: BENCH=sidebyside.

First each kind of job runs alone: unknown to Salus (which measures its memory), known, and plain. Then the jobs of
tests/support/mix.py run once in every configuration, submitted at the same times:

- `gpu`: --gres=gpu:1 in the order of submission; `gpu-shortest`: the same with --nice by length, so that Slurm takes
  the shortest of those that wait.
- `shard`: --gres=shard:N by peak memory, without Salus: whoever fits runs at once on the device's core.
- `fifo`, `srtf`, `fair`, `pack`: --gres=salus:1 under that policy. srtf is told the time that the job takes alone.

A job that fails, is lost or has another checksum than in the first configuration ends the benchmark. Last, the same
jobs with the times measured alone go through `salus simulate`, and so do other seeds and a random order of submission.
"""

import argparse
import csv
import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from nodedaemon.core.types import MIB, MILLISECOND_NS, SECOND_NS, JobId
from nodedaemon.sim.run import Setting, prepare, run_baseline, run_policy
from nodedaemon.sim.workload import Job, Workload, by_submission
from tests.support import mix
from tests.support.mix_job import NICE_WEIGHT
from tests.support.slurm_mix import LostError, Order, cluster_of, figures, simulate, slurm_time

POLICIES = ("fifo", "srtf", "fair", "pack")
#: What `salus simulate` calls the configurations.
SIMULATED = {"gpu": "exclusive", "gpu-shortest": "exclusive-sjf", "shard": "peak", **{name: name for name in POLICIES}}
SOLO_ITERATIONS = 40
OTHER_SEEDS = range(2, 22)


def say(text):
    print(f"sidebyside: {text}", file=sys.stderr, flush=True)


def argv_of(program, kind, iterations):
    return (program, *kind.arguments, str(iterations), "1")


def run_alone(stage, program, name, options):
    """Each kind alone on a device, one after another on each; medians in seconds."""
    ended, found = {}, {}
    # As many at once as there are devices, so that each is alone on its own.
    for start in range(0, len(mix.KINDS), mix.DEVICE_COUNT):
        part = mix.KINDS[start : start + mix.DEVICE_COUNT]
        orders = [Order(kind.name, 0.0, options(kind), argv_of(program, kind, SOLO_ITERATIONS)) for kind in part]
        ended.update(stage.run(f"{name}{start}", orders))
    for kind in mix.KINDS:
        job = ended[kind.name]
        iteration_s = statistics.median(job.told["spans"][3:])
        beside_s = sum(job.told["spans"]) - iteration_s * SOLO_ITERATIONS
        found[kind.name] = {
            "iteration_ms": round(iteration_s * 1000, 2),
            # What a job takes beside its iterations: Slurm, imports, the first touch of its pages, the end.
            "startup_s": round(job.completion_s - iteration_s * SOLO_ITERATIONS, 3),
            "startup_cpu_s": round(job.told["startup_cpu_s"] + beside_s + job.ended - job.told["done"], 3),
        }
    return found


def run_queued(stage, program):
    """By how much a job of each kind holds a whole device longer than its iterations: Slurm hands it on in between."""
    orders = [
        Order(f"{kind.name}{round_number}", 0.0, ("--gres=gpu:1",), argv_of(program, kind, mix.ITERATIONS_MIN))
        for round_number in range(3)
        for kind in mix.KINDS
    ]
    ended = sorted(stage.run("queued", orders).values(), key=lambda job: job.ended)
    held = {kind.name: [] for kind in mix.KINDS}
    for node in {job.node for job in ended}:
        there = [job for job in ended if job.node == node]
        for before, job in itertools.pairwise(there):
            iterations_s = statistics.median(job.told["spans"]) * mix.ITERATIONS_MIN
            held[job.name[:-1]].append(job.ended - before.ended - iterations_s)
    return {name: {"queued_s": round(statistics.median(values), 3)} for name, values in held.items()}


def calibrate(stage, program, jobs):
    """Times of each kind alone, plain and under Salus, and the profiles that Salus has learned."""
    say("each kind alone: unknown to Salus")
    by_name = lambda kind: ("--gres=salus:1", f"--salus-profile={kind.name}")  # noqa: E731
    unknown = run_alone(stage, program, "unknown", by_name)
    profiles = stage.profiles([kind.name for kind in mix.KINDS])
    say("each kind alone: known to Salus, then plain")
    known = run_alone(stage, program, "known", by_name)
    plain = run_alone(stage, program, "plain", lambda _kind: ("--gres=gpu:1",))
    say("each kind after another, plain")
    for name, found in run_queued(stage, program).items():
        plain[name] |= found
    kinds = {}
    for kind in mix.KINDS:
        profile = profiles[kind.name]
        kinds[kind.name] = {
            "persistent_mib": round(profile["persistent_bytes"] / MIB, 1),
            "ephemeral_mib": round(profile["ephemeral_bytes"] / MIB, 1),
            "peak_bytes": profile["persistent_bytes"] + profile["ephemeral_bytes"],
            "boundary_rule": profile["boundary_rule"][:60],
            "jobs": sum(job.kind is kind for job in jobs),
            **{f"{side}_{key}": value for side, found in (("unknown", unknown), ("known", known), ("plain", plain))
               for key, value in found[kind.name].items()},
        }  # fmt: skip
        say(f"{kind.name}: {kinds[kind.name]}")
    return kinds


def solo_s(kinds, job, side):
    kind = kinds[job.kind.name]
    return kind[f"{side}_startup_s"] + job.iterations * kind[f"{side}_iteration_ms"] / 1000


def orders_of(configuration, stage, program, kinds, jobs):
    """How a configuration submits the jobs."""
    plan = stage.cluster.plan

    def options(job):
        work_s = job.iterations * kinds[job.kind.name]["plain_iteration_ms"] / 1000
        if configuration == "gpu":
            return ("--gres=gpu:1",)
        if configuration == "gpu-shortest":
            return ("--gres=gpu:1", f"--nice={round(work_s * 1000)}")
        if configuration == "shard":
            share = kinds[job.kind.name]["peak_bytes"] / plan.device_bytes
            return (f"--gres=shard:{min(plan.device_shards, -int(-share * plan.device_shards // 1))}",)
        return ("--gres=salus:1", f"--salus-profile={job.kind.name}", f"--salus-time={slurm_time(work_s)}")

    return [Order(job.name, job.submit_s, options(job), argv_of(program, job.kind, job.iterations)) for job in jobs]


def run_configurations(stage, program, kinds, jobs, names):
    """Every configuration once: figures, and the times of submission of the policies for the simulator."""
    alone = {job.name: solo_s(kinds, job, "plain") for job in jobs}
    found, submits, checksums = {}, {}, {}
    for name in names:
        if name in POLICIES:
            stage.set_policy(name)
        started = time.monotonic()
        ended = stage.run(name, orders_of(name, stage, program, kinds, jobs))
        for job in ended.values():
            if checksums.setdefault(job.name, job.told["checksum"]) != job.told["checksum"]:
                raise LostError(f"{name}: {job.name}: another result than in {names[0]}")
        found[name] = figures(ended, alone, mix.DEVICE_COUNT)
        found[name]["on_first_device"] = sum(job.node == stage.cluster.plan.nodes[0] for job in ended.values())
        begun = min(job.submitted for job in ended.values())
        submits[name] = {job.name: job.submitted - begun for job in ended.values()}
        shown = {key: value for key, value in found[name].items() if key != "completion_s"}
        say(f"{name} in {time.monotonic() - started:.0f} s: {shown}")
    return found, submits


def predict(kinds, jobs, submits, found):
    """The same jobs in `salus simulate`, and how far its average completion is from the real one."""
    predicted = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, simulated in SIMULATED.items():
            if name not in found:
                continue
            path = Path(folder) / f"{name}.csv"
            latencies_s = write_jobs(path, name, kinds, jobs, submits[name])
            options = ("--gpus", str(mix.DEVICE_COUNT), "--nodes", str(mix.DEVICE_COUNT), "--gpu-memory",
                       f"{mix.DEVICE_MIB}M", "--lane-reserve", f"{mix.LANE_RESERVE_MIB}M", "--startup-weight",
                       f"{NICE_WEIGHT:.2f}", "--policy", simulated if name in POLICIES else "fifo")  # fmt: skip
            told = simulate(path, *options)[simulated]
            average_s = told["average_completion_s"] + statistics.mean(latencies_s)
            predicted[name] = {
                "predicted_s": round(average_s, 3),
                "real_s": found[name]["average_s"],
                "error": round(average_s / found[name]["average_s"] - 1, 4),
                "predicted_makespan_s": round(told["makespan_s"] + min(latencies_s), 3),
                "real_makespan_s": found[name]["makespan_s"],
            }
            say(f"{name}: {predicted[name]}")
    return predicted


def start_of(name, kinds, kind):
    """How long a job of a kind starts up in a configuration, and what it loses to Slurm before it takes a core.

    A whole device is held until the next job has it, so there all of it counts as start. Where devices are shared
    nobody misses the core while Slurm places a job: it is submitted later by that time, which is one for all kinds.
    """
    if name.startswith("gpu"):
        return kind["plain_queued_s"], 0.0
    side = "known" if name in POLICIES else "plain"
    lost_s = [max(0.0, told[f"{side}_startup_s"] - told[f"{side}_startup_cpu_s"]) for told in kinds.values()]
    return kind[f"{side}_startup_cpu_s"], statistics.median(lost_s)


def iteration_ms_of(name, kind):
    return kind["known_iteration_ms" if name in POLICIES else "plain_iteration_ms"]


def write_jobs(path, name, kinds, jobs, submits):
    """Write the table of jobs for the simulator; returns what each job loses to Slurm before it takes a core."""
    latencies_s = []
    with path.open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["job", "submit_s", "model", "persistent_mb", "ephemeral_mb", "iteration_ms", "iterations",
                       "startup_s"])  # fmt: skip
        for job in jobs:
            kind = kinds[job.kind.name]
            startup_s, latency_s = start_of(name, kinds, kind)
            latencies_s.append(latency_s)
            rows.writerow([job.name, f"{submits[job.name] + latency_s:.3f}", job.kind.name, kind["persistent_mib"],
                           kind["ephemeral_mib"], iteration_ms_of(name, kind), job.iterations,
                           f"{startup_s:.3f}"])  # fmt: skip
    return latencies_s


def simulated_average_s(name, kinds, jobs):
    """Average completion of a configuration in the simulator, for jobs as they were drawn."""
    setting = Setting(
        device_bytes=mix.DEVICE_MIB * MIB, device_count=mix.DEVICE_COUNT, node_count=mix.DEVICE_COUNT,
        lane_reserve_bytes=mix.LANE_RESERVE_MIB * MIB, startup_weight=NICE_WEIGHT,
    )  # fmt: skip
    rows, latencies_s = [], []
    for job in jobs:
        kind = kinds[job.kind.name]
        startup_s, latency_s = start_of(name, kinds, kind)
        latencies_s.append(latency_s)
        rows.append(
            Job(
                JobId(job.name), round((job.submit_s + latency_s) * SECOND_NS), round(kind["persistent_mib"] * MIB),
                round(kind["ephemeral_mib"] * MIB), round(iteration_ms_of(name, kind) * MILLISECOND_NS),
                job.iterations, model=job.kind.name, startup_ns=round(startup_s * SECOND_NS),
            )
        )  # fmt: skip
    prepared = prepare(Workload("mix", by_submission(rows)), setting)
    run = run_policy if name in POLICIES else run_baseline
    return run(prepared, SIMULATED[name]).average_completion_s + statistics.mean(latencies_s)


def other_draws(kinds, *, in_random_order):
    """The gain of srtf in the simulator for other seeds: how special the one that ran is."""
    gains = {"gpu": [], "gpu-shortest": [], "shard": []}
    for seed in OTHER_SEEDS:
        jobs = mix.mix(seed, in_random_order=in_random_order)
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="configurations to run, separated by commas; for trying it out")
    parser.add_argument("--scale", type=float, default=1.0, help="of all lengths and gaps; for trying it out")
    options = parser.parse_args()
    jobs = tuple(job.scaled(options.scale) for job in mix.mix())
    names = [name for name in SIMULATED if not options.only or name in options.only.split(",")]
    with cluster_of(mix.DEVICE_MIB, mix.LANE_RESERVE_MIB, devices=mix.DEVICE_COUNT, say=say) as stage:
        program = stage.program("mix_job.py")
        kinds = calibrate(stage, program, jobs)
        found, submits = run_configurations(stage, program, kinds, jobs, names)
    result = {
        "bench": "sidebyside",
        "n": len(jobs),
        "scale": options.scale,
        "lost": 0,
        "failed": 0,
        "seed": mix.SEED,
        "work_s": round(sum(job.iterations * kinds[job.kind.name]["plain_iteration_ms"] for job in jobs) / 1000, 1),
        "kinds": kinds,
        "configurations": found,
        "simulated": predict(kinds, jobs, submits, found),
        "other_seeds": len(OTHER_SEEDS),
        "other_seeds_gain": other_draws(kinds, in_random_order=False),
        "random_order_gain": other_draws(kinds, in_random_order=True),
    }
    if "srtf" in found:
        best_s = found["srtf"]["average_s"]
        result["gain"] = {name: round(told["average_s"] / best_s, 3) for name, told in found.items()}
        result["ratio"] = result["gain"].get("gpu")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
