"""A high-class job alone and beside a best-effort job, with and without launch gating: p99 of its iterations.

`device` figures are times between device events around the kernels of an iteration, which a busy host distorts less.
All three settings run in several rounds on one emulated device with time slices. The emulator's time model is not that
of a GPU (docs/emulator.md): the figures show that gating works, not what it gains on hardware.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from tests.support.cuda_node import CudaNode, wait_started

HIGH = ("--kernels", "4", "--kernel-us", "500", "--activations-mib", "16", "--pause-us", "10000", "--leave")
# Class of the other job: none, one whose kernels are not held back, and one whose kernels are.
SETTINGS = {"alone": None, "ungated": "normal", "gated": "best-effort"}
OTHER = ("--iterations", "1000000", "--kernels", "40", "--kernel-us", "1000", "--activations-mib", "16", "--started")


def measure(other_class: str | None, count: int) -> dict[str, Any]:
    """The high job's report, and how many iterations the other completed meanwhile."""
    # With pack both lanes run at once, so the jobs compete only for the queue of kernels.
    with CudaNode("tiny-1g", "MaxLanes=2\nPolicy=pack") as node:
        other = node.job(*OTHER, job_class=other_class) if other_class else None
        if other is not None:
            wait_started(other)
        found = node.report(node.job("--iterations", str(count), *HIGH, job_class="high"))
        other_count = 0
        if other is not None:
            other.terminate()
            other_count = node.report(other)["iterations"]
        node.stop()
    kept = ("p50_ns", "p99_ns", "device_p50_ns", "device_p99_ns", "wrong")
    return {**{name: found[name] for name in kept}, "other_count": other_count}


def spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"median": ordered[len(ordered) // 2], "min": ordered[0], "max": ordered[-1]}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="iterations of the high job in each setting")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of all three settings")
    options = parser.parse_args(arguments)
    rounds = []
    for number in range(options.repeats):
        sys.stderr.write(f"launches: round {number + 1} of {options.repeats}: {options.count} iterations per setting\n")
        rounds.append({name: measure(other_class, options.count) for name, other_class in SETTINGS.items()})
    # Compare within a round: what slows the machine for a while slows all three settings.
    ratios = {
        f"{name}_{figure}_ratio": spread(
            [round(one[name][f"{figure}_ns"] / one["alone"][f"{figure}_ns"], 3) for one in rounds]
        )
        for figure in ("p50", "p99", "device_p50", "device_p99")
        for name in ("ungated", "gated")
    }
    p99_ns = {name: spread([one[name]["device_p99_ns"] for one in rounds]) for name in SETTINGS}
    others = {name: spread([one[name]["other_count"] for one in rounds]) for name in SETTINGS if SETTINGS[name]}
    found = {"n": options.repeats, "iterations": options.count, "device_p99_ns": p99_ns, "other_iterations": others}
    wrong = sum(one[name]["wrong"] for one in rounds for name in SETTINGS)
    note = "emulated device: the time model is not a GPU's"
    sys.stdout.write(json.dumps({**found, **ratios, "wrong": wrong, "note": note}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
