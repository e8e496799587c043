"""42 model servers with rare requests resident on one device of a real Slurm cluster: `make bench BENCH=inference`.

14 models, 3 copies each, as in the published experiment, with its memory scaled by 1/32 and requests about twice as
often. First each model serves alone: with --gres=gpu:1 on a device of its own, and with --gres=salus:1, which measures
it. Then all 42 run with --gres=salus:1 on one device, and the latency of every request is compared with those of the
servers alone. The profiles show how many devices the 42 need with gres/gpu and with gres/shard by peak memory.

The node has IdleRelease=20ms, because a server is idle as soon as it has answered. With the default, others would
wait 200 ms for its lane.
"""

import argparse
import csv
import json
import statistics
import sys
import time
from pathlib import Path

from nodedaemon.core.memory import charge_units, with_headroom
from nodedaemon.core.types import MIB
from nodedaemon.sim.job_queue import bins_needed
from tests.support.lab import wait_for
from tests.support.slurm_mix import LostError, Order, cluster_of, quantile

MODELS = Path("nodedaemon/sim/data/models.csv")
COPIES = 3
SCALE = 32
DEVICE_MIB = 8704  # the persistent memory of all 42 and the ephemeral memory of one fit; the sum of peaks does not
LANE_RESERVE_MIB = 128
ALONE_REQUESTS, ALONE_INTERVAL_MS = 15, 150
REQUESTS, INTERVAL_MS, FACTOR = 8, 4000, 3
SALUS_LINES = ("IdleRelease=20ms",)


def say(text):
    print(f"inference: {text}", file=sys.stderr, flush=True)


def models(root):
    """Name and scaled sizes in MiB of every published inference job."""
    lines = [line for line in (root / MODELS).read_text().splitlines() if not line.startswith("#")]
    return {
        row["job"]: (
            max(1, round(float(row["persistent_mb"]) / SCALE)),
            max(1, round(float(row["ephemeral_mb"]) / SCALE)),
        )
        for row in csv.DictReader(lines)
        if row["kind"] == "inference"
    }


def argv_of(program, sizes, count, interval_ms, factor, seed, go):
    return (program, *map(str, (*sizes, count, interval_ms, factor, seed)), go)


def spread(latencies):
    return {
        "n": len(latencies),
        "p50_ms": round(statistics.median(latencies), 2),
        "p99_ms": round(quantile(latencies, 0.99), 2),
        "max_ms": round(max(latencies), 2),
        "mean_ms": round(statistics.mean(latencies), 2),
    }


def run_alone(stage, program, found, gres):
    orders = [
        Order(name, 0.0, (f"--gres={gres}", f"--salus-profile={name}") if "salus" in gres else (f"--gres={gres}",),
              argv_of(program, sizes, ALONE_REQUESTS, ALONE_INTERVAL_MS, FACTOR, 1, "-"))
        for name, sizes in found.items()
    ]  # fmt: skip
    return stage.run(f"alone-{gres.partition(':')[0]}", orders)


def run_together(stage, program, found):
    """Run all servers at once on one node; their requests begin when the last server is ready."""
    folder = stage.folder("together")
    go = folder / "go"
    node = stage.cluster.plan.nodes[0]
    names, numbers, submitted = [], [], time.time()
    for copy in range(COPIES):
        for number, (name, sizes) in enumerate(found.items()):
            seed = 1 + copy * len(found) + number
            argv = argv_of(program, sizes, REQUESTS, INTERVAL_MS, FACTOR, seed, str(go))
            options = ("--gres=salus:1", f"--salus-profile={name}", f"--nodelist={node}")
            names.append(f"{name}-{copy}")
            # Their start is not measured, so any core will do, and salusd pins them once they have a session.
            numbers.append(stage.sbatch(folder, Order(names[-1], 0.0, options, argv), ",CORES=0-1023")[0])

    def are_all_ready():
        return len(list(folder.glob("go.*"))) == len(names)

    wait_for(are_all_ready, lambda: f"all servers: {stage.cluster.run(['squeue']).stdout}", 280)
    ready_s = time.time() - submitted
    status = stage.node_status(node)
    if len({row["job"] for row in status["sessions"]}) != len(names):
        raise LostError(f"{len(status['sessions'])} sessions of {len(names)} servers")
    say(f"{len(names)} servers resident after {ready_s:.0f} s")
    (folder / "part").write_text(str(time.time() + 3))
    (folder / "part").rename(go)
    stage.wait_ends(folder, names, time.time() + REQUESTS * INTERVAL_MS / 1000 * FACTOR + 120)
    ended = {name: stage.read(folder, name, submitted) for name in names}
    stage.wait_empty("together")
    stage.check_accounting("together", numbers)
    return ended, round(ready_s, 1), status


def devices_needed(profiles):
    """Devices for all servers at once, by the rule of each side, with the sizes that admission uses."""
    capacity = DEVICE_MIB * MIB
    sizes = [(with_headroom(row["persistent_bytes"], 10), with_headroom(row["ephemeral_bytes"], 10))
             for row in profiles.values() for _ in range(COPIES)]  # fmt: skip
    reserve = LANE_RESERVE_MIB * MIB
    units = lambda amount: amount // (16 * MIB)  # noqa: E731
    return {
        "gpu": len(sizes),
        "shard": bins_needed([-(-(kept + lent) // (16 * MIB)) for kept, lent in sizes], units(capacity)),
        "salus": bins_needed([charge_units(kept, lent, reserve) for kept, lent in sizes], units(capacity - reserve)),
    }


def main():
    argparse.ArgumentParser().parse_args()
    found = models(Path(__file__).resolve().parents[2])
    with cluster_of(DEVICE_MIB, LANE_RESERVE_MIB, devices=2, say=say, salus_lines=SALUS_LINES) as stage:
        program = stage.program("mix_server.py")
        say("each model alone: plain, then by Salus, which measures it")
        plain = run_alone(stage, program, found, "gpu:1")
        measured = run_alone(stage, program, found, "salus:1")
        profiles = stage.profiles(list(found))
        stage.set_policy("fair")
        together, ready_s, status = run_together(stage, program, found)
    pool = lambda ended: [value for job in ended.values() for value in job.report["latencies_ms"]]  # noqa: E731
    if {job.node for job in together.values()} != {"node1"}:
        raise LostError("the servers were not on one device")
    # Alone, a plain server is slower: it gets fresh pages for each request, while a lane keeps its pages.
    alone, shared = spread(pool(measured)), spread(pool(together))
    print(json.dumps({
        "bench": "inference",
        "n": len(together),
        "failed": 0,
        "models": len(found),
        "device_gib": DEVICE_MIB / 1024,
        "alone_plain": spread(pool(plain)),
        "alone": alone,
        "together": shared,
        "resident_after_s": ready_s,
        "lanes": len(status["lanes"]),
        "persistent_mib": round(COPIES * sum(row["persistent_bytes"] for row in profiles.values()) / MIB),
        "ephemeral_max_mib": round(max(row["ephemeral_bytes"] for row in profiles.values()) / MIB),
        "peak_sum_mib": round(
            COPIES * sum(row["persistent_bytes"] + row["ephemeral_bytes"] for row in profiles.values()) / MIB
        ),
        "devices": devices_needed(profiles),
        "busy_share": round(alone["mean_ms"] / 1000 * len(together) / (INTERVAL_MS / 1000 * (1 + FACTOR) / 2), 3),
        "ratio": round(shared["p50_ms"] / alone["p50_ms"], 3),
        "ratio_p99": round(shared["p99_ms"] / alone["p99_ms"], 3),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
