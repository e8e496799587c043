"""A sweep of identical training jobs that Salus has never seen, compared with gres/gpu: `make bench BENCH=sweep`.

An array of 30 tasks, submitted at once, three times: `gpu` with --gres=gpu:1; `empty` with --gres=salus:1 with an empty
database, where ProbeTasks=1 lets the first task run alone until it is measured; `known` the same again. The cost
of learning is the difference between the last two.
"""

import argparse
import json
import statistics
import sys

from tests.support import mix
from tests.support.slurm_mix import LostError, Order, cluster_of

TASK_COUNT = 30
ITERATIONS = 25
KIND = mix.KINDS[1]


def say(text):
    print(f"sweep: {text}", file=sys.stderr, flush=True)


def report(ended):
    """Times from the submission of the array, in seconds."""
    ends = sorted(job.ended - job.submitted for job in ended.values())
    starts = sorted(job.report["first"] - job.submitted for job in ended.values())
    return {
        "finish_s": round(ends[-1], 2),
        "average_s": round(statistics.mean(ends), 2),
        "first_end_s": round(ends[0], 2),
        # The first iteration of the second task: until then a sweep of an unknown job waits for its probe.
        "second_start_s": round(starts[1], 2),
        "completion_s": [round(value, 2) for value in ends],
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=TASK_COUNT)
    options = parser.parse_args()
    found, checksums = {}, set()
    lines = ("PartitionName=main ProbeTasks=1",)
    with cluster_of(mix.DEVICE_MIB, mix.LANE_RESERVE_MIB, devices=2, say=say, salus_lines=lines) as stage:
        program = stage.program("mix_job.py")
        stage.set_policy("pack")
        argv = (program, *KIND.arguments, str(ITERATIONS), "1")
        for name, gres in (("gpu", "gpu:1"), ("empty", "salus:1"), ("known", "salus:1")):
            ended = stage.run_array(name, Order("task", 0.0, (f"--gres={gres}",), argv), options.tasks)
            checksums |= {job.report["checksum"] for job in ended.values()}
            found[name] = report(ended)
            say(f"{name}: { ({key: value for key, value in found[name].items() if key != 'completion_s'}) }")
        profiles = len(json.loads(stage.salus("profiles", "list", "--json")))
    if len(checksums) != 1:
        raise LostError(f"equal tasks gave {len(checksums)} results")
    print(json.dumps({
        "bench": "sweep",
        "n": options.tasks,
        "iterations": ITERATIONS,
        "failed": 0,
        "profiles": profiles,
        "configurations": found,
        "learning_s": round(found["empty"]["finish_s"] - found["known"]["finish_s"], 2),
        "ratio": round(found["gpu"]["finish_s"] / found["empty"]["finish_s"], 3),
        "ratio_known": round(found["gpu"]["finish_s"] / found["known"]["finish_s"], 3),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
