"""Devices of 5,120 shards against 256, in one run: `make bench BENCH=shards`, other releases with `ARGS="--root DIR"`.

Two clusters side by side differ only in the number of shards. Each round does the same on both in turn. It submits
eight jobs of three eighths of a device, of which two fit on each device, and waits until four run. Then it cancels two
of them and waits until their successors run. The ratio is that of the medians, large to small: 1 means no difference.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from nodedaemon.core.types import GIB, MIB
from slurm_plugin.cluster import control
from slurm_plugin.cluster.plan import ClusterPlan
from tests.support.lab import Lab, wait_for

COUNTS = {"small": 256, "large": 5_120}


def say(text):
    print(f"shards: {text}", file=sys.stderr, flush=True)


def running(lab):
    return lab.ask("squeue", "-h", "-t", "R", "-o", "%A").split()


def one_round(lab, shard_count):
    """Seconds per submission, until four of eight run, and until their successors run."""
    memory = f"--salus-mem={shard_count * 3 // 8 * 16}M"
    started = time.perf_counter()
    jobs = [lab.sbatch("--gres=salus:1", memory, "--wrap", "sleep 300") for _ in range(8)]
    submitted_s = (time.perf_counter() - started) / len(jobs)
    wait_for(lambda: len(running(lab)) == 4, "four jobs to run", 60)
    filled_s = time.perf_counter() - started
    first = running(lab)
    assert sorted(first) == sorted(jobs[:4]), "the four oldest jobs must run"
    places = [lab.device(job) for job in first]
    assert sorted(places.count(place) for place in set(places)) == [2, 2], places
    started = time.perf_counter()
    lab.run("scancel", *first[:2])
    wait_for(lambda: len(set(running(lab)) - set(first)) == 2, "two successors to run", 60)
    followed_s = time.perf_counter() - started
    lab.cancel_all()
    return {"submit": submitted_s, "fill": filled_s, "follow": followed_s}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--root", type=Path, help="a root file system with another release of Slurm")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="salus-"))
    directory.chmod(0o755)
    labs, spans = {}, {name: [] for name in COUNTS}
    try:
        for name, count in COUNTS.items():
            say(f"starting a cluster with {count} shards per device")
            plan = ClusterPlan(
                directory=directory / name, node_count=1, device_bytes=80 * GIB, lane_reserve_bytes=2 * MIB,
                shard_count=count, with_daemons=False, root=options.root,
            )  # fmt: skip
            labs[name] = Lab(control.up(plan, owner_pid=os.getpid()))
        for number in range(-1, options.rounds):
            for name in COUNTS if number % 2 == 0 else reversed(COUNTS):
                found = one_round(labs[name], COUNTS[name])
                # The first round warms both up.
                if number >= 0:
                    spans[name].append(found)
            say(f"round {number + 1} of {options.rounds}: " + ", ".join(
                f"{name} {spans[name][-1]['fill']:.2f} s" for name in COUNTS if spans[name]))  # fmt: skip
        release = "{}.{:02d}".format(*labs["small"].release)
    finally:
        for lab in labs.values():
            lab.cluster.down()
        shutil.rmtree(directory, ignore_errors=True)
    medians = {
        name: {what: statistics.median(one[what] for one in found) for what in found[0]}
        for name, found in spans.items()
    }
    ratios = {what: round(medians["large"][what] / value, 3) for what, value in medians["small"].items()}
    result = {
        "bench": "shards", "slurm": release, "n": options.rounds,
        **{f"{name}_{what}_ms": round(value * 1000, 1) for name in medians for what, value in medians[name].items()},
        "ratios": ratios, "ratio": max(ratios.values()),
    }  # fmt: skip
    print(json.dumps(result))


if __name__ == "__main__":
    main()
