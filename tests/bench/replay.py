"""Replay of a cluster: seconds for 1,000 to 8,000 jobs, and whether they grow faster than n log n.

Each size has its share of the cluster (8,000 jobs: 1,200 nodes with 6,200 devices), so that contention is the same at
every size. All jobs are submitted at once, the most crowded case. Sizes alternate, so that changes in the machine's
speed affect all of them. The same jobs are also replayed with one job per device, which needs no engine, to show what
the engine costs. Arguments: rounds, policy.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time

from nodedaemon.core.types import GIB
from nodedaemon.sim.builtin import Draw, built_in
from nodedaemon.sim.device import SimulationSetup
from nodedaemon.sim.run import Prepared, prepare, run_baseline, run_policy

SIZES = (1_000, 2_000, 4_000, 8_000)
JOBS, NODES, DEVICES = 8_000, 1_200, 6_200
TURNS_PER_JOB = 20


def cluster(job_count: int, device_share: float) -> Prepared:
    """Jobs all submitted at once on this job count's part of the cluster, times `device_share`."""
    device_count = round(DEVICES * device_share * job_count / JOBS)
    node_count = max(1, round(NODES * device_share * job_count / JOBS))
    draw = Draw(load=math.inf, job_count=job_count, device_count=device_count)
    (workload,) = built_in("cluster", draw)
    return prepare(workload, SimulationSetup(16 * GIB, device_count, node_count, turns_per_job=TURNS_PER_JOB))


def measure(rounds: int, policy: str, device_share: float) -> dict[str, object]:
    runs = {size: cluster(size, device_share) for size in SIZES}
    costs: dict[int, list[float]] = {size: [] for size in SIZES}
    walls: dict[int, list[float]] = {size: [] for size in SIZES}
    exclusive: list[float] = []
    for number in range(rounds):
        for size, run in runs.items():
            # Processor time: the simulator is one thread, and the machine may be shared.
            begin, begin_wall = time.process_time(), time.monotonic()
            answer = run_policy(run, policy)
            costs[size].append(time.process_time() - begin)
            walls[size].append(time.monotonic() - begin_wall)
            print(f"round {number + 1}: {size} jobs on {run.setup.device_count} devices: {costs[size][-1]:.2f} s, "
                  f"{answer.hand_overs} hand-overs", file=sys.stderr)  # fmt: skip
        begin = time.process_time()
        run_baseline(runs[SIZES[-1]], "exclusive")
        exclusive.append(time.process_time() - begin)
    medians = {size: statistics.median(values) for size, values in costs.items()}
    per_unit = {size: cost / (size * math.log2(size)) for size, cost in medians.items()}
    return {
        "devices": runs[SIZES[-1]].setup.device_count,
        "seconds": {str(size): round(cost, 3) for size, cost in medians.items()},
        "wall_seconds_8000": round(statistics.median(walls[SIZES[-1]]), 3),
        "seconds_exclusive_8000": round(statistics.median(exclusive), 3),
        # At most 1: no worse than n log n.
        "ratio_to_n_log_n": round(per_unit[SIZES[-1]] / per_unit[SIZES[0]], 3),
    }


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    policy = sys.argv[2] if len(sys.argv) > 2 else "fair"
    result: dict[str, object] = {"bench": "replay", "n": rounds, "policy": policy, "turns_per_job": TURNS_PER_JOB}
    result["cluster"] = measure(rounds, policy, 1.0)
    # A tenth of the devices: nearly every turn is contended. It runs once, because only the growth matters.
    result["crowded"] = measure(1, policy, 0.1)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
