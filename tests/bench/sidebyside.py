"""The same PyTorch jobs with gres/gpu, gres/shard and Salus on one Slurm cluster: `make bench BENCH=sidebyside`.

First each kind of job runs alone: unknown to Salus (which measures its memory), known, and plain. Then the jobs of
tests/support/mix.py run once in every configuration, submitted at the same times:

- `gpu`: --gres=gpu:1 in the order of submission; `gpu-shortest`: the same with --nice by length, so that Slurm
  starts the shortest waiting job first.
- `shard`: --gres=shard:N by peak memory, without Salus: every job that fits runs at once on the device's core.
- `fifo`, `srtf`, `fair`, `pack`: --gres=salus:1 under that policy. For srtf, jobs declare their time alone.

Jobs have the same lengths on every machine: the plain runs alone decide how many iterations a job has.

The speed of a machine can change by the minute, so each run of a series begins with a different configuration.
A job that fails, is lost or has a different checksum than in the first configuration ends the benchmark. Last, the same
jobs go through `salus simulate` (tests/support/mix_simulation.py).
"""

import argparse
import json
import os
import statistics
import sys
import time

from nodedaemon.core.types import MIB
from tests.support import mix
from tests.support.mix_simulation import (
    OTHER_SEEDS,
    POLICIES,
    SIMULATED,
    followers,
    learned_of_all,
    other_draws,
    plain_ms,
    predict,
    simulated_gains,
    startup_weight,
)
from tests.support.slurm_mix import LostError, Order, cluster_of, figures, slurm_time

SOLO_ITERATIONS, PLAIN_ITERATIONS = 40, 100


def say(text):
    print(f"sidebyside: {text}", file=sys.stderr, flush=True)


def argv_of(program, kind, iterations):
    return (program, *kind.arguments, str(iterations), "1")


def run_alone(stage, program, name, rounds, iterations, options):
    """Each kind alone on a device, as many at once as there are devices; means in seconds."""
    ended = {kind.name: [] for kind in mix.KINDS}
    for number, kinds in enumerate(rounds):
        orders = [
            Order(f"{kind.name}-{place}", 0.0, options(kind), argv_of(program, kind, iterations))
            for place, kind in enumerate(kinds)
        ]
        for job in stage.run(f"{name}{number}", orders).values():
            ended[job.name.partition("-")[0]].append(job)
    found = {}
    for kind, jobs in ended.items():
        iteration_s = statistics.mean(span for job in jobs for span in job.report["spans"][3:])
        mean = lambda value, jobs=jobs: statistics.mean(value(job) for job in jobs)  # noqa: E731
        found[kind] = {
            "iteration_ms": round(iteration_s * 1000, 2),
            # The time that a job takes besides its iterations: Slurm, imports, the first touch of its pages, the end.
            "startup_s": round(mean(lambda job: job.completion_s) - iteration_s * iterations, 3),
            "startup_cpu_s": round(mean(lambda job: job.startup_cpu_s), 3),
            "latency_s": round(mean(lambda job: job.started - job.submitted), 3),
            "beside_cpu_s": round(mean(lambda job: job.beside_cpu_s), 3),
        }
    return found


def run_queued(stage, program):
    """How much longer than its iterations a job of each kind holds a whole device, until the next job gets it."""
    orders = [
        Order(f"{kind.name}{round_number}", 0.0, ("--gres=gpu:1",), argv_of(program, kind, mix.ITERATIONS_MIN))
        for round_number in range(3)
        for kind in mix.KINDS
    ]
    held = {kind.name: [] for kind in mix.KINDS}
    for job, held_s in followers(stage.run("queued", orders)):
        held[job.name[:-1]].append(held_s - statistics.median(job.report["spans"]) * mix.ITERATIONS_MIN)
    return {name: {"queued_s": round(statistics.median(values), 3)} for name, values in held.items()}


def calibrate(stage, program):
    """Times of each kind alone, plain and under Salus, and the profiles that Salus has learned."""
    say("each kind alone: unknown to Salus")
    by_name = lambda kind: ("--gres=salus:1", f"--salus-profile={kind.name}")  # noqa: E731
    pairs = [mix.KINDS[at : at + mix.DEVICE_COUNT] for at in range(0, len(mix.KINDS), mix.DEVICE_COUNT)]
    unknown = run_alone(stage, program, "unknown", pairs, SOLO_ITERATIONS, by_name)
    profiles = stage.profiles([kind.name for kind in mix.KINDS])
    say("each kind alone: known to Salus, then plain")
    known = run_alone(stage, program, "known", pairs, SOLO_ITERATIONS, by_name)
    # These runs decide how many iterations a job has, so they are longer and keep all devices busy to the end.
    doubled = [(kind,) * mix.DEVICE_COUNT for kind in mix.KINDS]
    plain = run_alone(stage, program, "plain", doubled, PLAIN_ITERATIONS, lambda _kind: ("--gres=gpu:1",))
    say("one kind after another, plain")
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
    """Every configuration once: figures, and the reports of each job for the simulator."""
    alone = {job.name: solo_s(kinds, job, "plain") for job in jobs}
    found, ran, checksums = {}, {}, {}
    for name in names:
        if name in POLICIES:
            stage.set_policy(name)
        started = time.monotonic()
        ended = stage.run(name, orders_of(name, stage, program, kinds, jobs))
        for job in ended.values():
            if checksums.setdefault(job.name, job.report["checksum"]) != job.report["checksum"]:
                raise LostError(f"{name}: {job.name}: a different result than in {names[0]}")
        found[name] = figures(ended, alone, mix.DEVICE_COUNT)
        found[name]["iterations_cpu_s"] = round(sum(job.report["cpu_s"] for job in ended.values()), 3)
        found[name]["beside_cpu_s"] = round(next(iter(ended.values())).beside_cpu_s, 3)
        found[name]["on_first_device"] = sum(job.node == stage.cluster.plan.nodes[0] for job in ended.values())
        ran[name] = ended
        shown = {key: value for key, value in found[name].items() if key != "completion_s"}
        say(f"{name} in {time.monotonic() - started:.0f} s: {shown}")
    return {name: found[name] for name in SIMULATED if name in found}, ran


def in_turn(names, run_number):
    """The order of a run: each run starts with another configuration, so over a few runs all come early and late."""
    first = 3 * (run_number - 1) % len(names)
    return names[first:] + names[:first]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="configurations to run, separated by commas; only for a trial")
    parser.add_argument("--scale", type=float, default=1.0, help="factor for all lengths and gaps; only for a trial")
    parser.add_argument("--seed", type=int, default=mix.SEED, help="seed of order, kinds and gaps; only for a trial")
    options = parser.parse_args()
    names = [name for name in SIMULATED if not options.only or name in options.only.split(",")]
    names = in_turn(names, int(os.environ.get("SALUS_BENCH_RUN", "1")))
    with cluster_of(mix.DEVICE_MIB, mix.LANE_RESERVE_MIB, devices=mix.DEVICE_COUNT, say=say) as stage:
        program = stage.program("mix_job.py")
        kinds = calibrate(stage, program)
        jobs = mix.mix(plain_ms(kinds), options.seed, scale=options.scale)
        for name, report in kinds.items():
            report["jobs"] = sum(job.kind.name == name for job in jobs)
        found, ran = run_configurations(stage, program, kinds, jobs, names)
    learned = learned_of_all(kinds, jobs, ran)
    result = {
        "bench": "sidebyside",
        "n": len(jobs),
        "scale": options.scale,
        "lost": 0,
        "failed": 0,
        "seed": options.seed,
        "order": names,
        "work_s": round(sum(job.iterations * kinds[job.kind.name]["plain_iteration_ms"] for job in jobs) / 1000, 1),
        "kinds": kinds,
        "configurations": found,
        "startup_weight": startup_weight(),
        "prediction": predict(kinds, jobs, ran, found, say),
        "simulated_gain": simulated_gains(kinds, learned, jobs),
        "other_seeds": len(OTHER_SEEDS),
        "other_seeds_gain": other_draws(kinds, learned, in_random_order=False),
        "random_order_gain": other_draws(kinds, learned, in_random_order=True),
    }
    if "srtf" in found:
        best_s = found["srtf"]["average_s"]
        result["gain"] = {name: round(report["average_s"] / best_s, 3) for name, report in found.items()}
        result["ratio"] = result["gain"].get("gpu")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
