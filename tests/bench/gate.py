"""The cost of watching a job that has its lane to itself: adaptor and lease, at iterations of about 5 ms.

One process runs blocks of iterations with and without the adaptor's wrappers in random order, and compares them in
pairs. A null control compares blocks without the wrappers to each other. The CPU time of the thread is compared,
because the work of other programs would hide the difference; the wall-clock time is printed beside it. The cost of
placing blocks in the lane instead of private memory is compared separately, without the wrappers. The size of an
iteration is chosen with warm iterations, and again if the first blocks miss the target time by more than a tenth.

usage: make bench BENCH=gate [ARGS="--pairs 200"]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "nodedaemon" / "job"
MIB = 1 << 20
ITERATION_NS = 5_000_000
BLOCK_ITERATIONS = 14
# The first iterations of a block are slow: type caches are empty after a method was replaced.
BLOCK_SKIPPED = 6
BOUNDARY_CALLS = 2_000_000
# After this many iterations, kernels are chosen, caches are filled and the rule is learned.
WARM_ITERATIONS = 60
TOLERANCE = 0.1
PILOT_PAIRS = 10
CALIBRATIONS_MAX = 6
CALLER = """
#include <time.h>
long call_ns(int (*boundary)(void), long count)
{
    struct timespec begin, end;
    long index;

    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (index = 0; index < count; index++)
        boundary();
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (end.tv_sec - begin.tv_sec) * 1000000000L + end.tv_nsec - begin.tv_nsec;
}
"""


class Mode(NamedTuple):
    is_watched: bool
    is_placed: bool


WATCHED, UNWATCHED, PRIVATE = Mode(True, True), Mode(False, True), Mode(False, False)
# In each pair, the first mode is compared with the second.
KINDS = {"adaptor": (WATCHED, UNWATCHED), "placement": (UNWATCHED, PRIVATE), "null": (UNWATCHED, UNWATCHED)}


class Switch:
    """Installs and removes the adaptor's wrappers."""

    def __init__(self, torch: Any, session: Any) -> None:
        import torch.optim.optimizer as optimizers
        from torch.utils.data import dataloader

        self._session = session
        self._hooks = (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)
        self._kept = tuple(dict(hooks) for hooks in self._hooks)
        self._places = [
            (torch.nn.Module, "__call__"),
            (torch.autograd, "backward"),
            (dataloader._BaseDataLoaderIter, "__next__"),
        ]
        self._wrappers = [getattr(owner, name) for owner, name in self._places]
        self._mode = WATCHED

    def set(self, mode: Mode) -> None:
        # Do this even if nothing changes: replacing a method empties the interpreter's caches, and every block must
        # have that cost.
        for (owner, name), wrapper in zip(self._places, self._wrappers, strict=True):
            setattr(owner, name, wrapper if mode.is_watched else wrapper.__wrapped__)
        for hooks, kept in zip(self._hooks, self._kept, strict=True):
            hooks.clear()
            hooks.update(kept if mode.is_watched else {})
        if mode.is_placed != self._mode.is_placed:
            (self._session.persist_end if mode.is_placed else self._session.persist_begin)()
        self._mode = mode


def build_network(torch: Any, width: int) -> Any:
    """A network of 23 modules."""
    nn = torch.nn
    layers: list[Any] = []
    for number in range(7):
        layers += [nn.Conv2d(3 if number == 0 else width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten())


class Training:
    """A training loop. The width of its images sets the time of an iteration."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._network = build_network(torch, 8)
        self._optimizer = torch.optim.SGD(self._network.parameters(), lr=1e-4, momentum=0.9)
        self.set_columns(16)

    def set_columns(self, columns: int) -> None:
        self.columns = max(4, columns)
        self._rows = self._torch.randn(4, 3, 16, self.columns)

    def iterate(self) -> None:
        self._optimizer.zero_grad()
        self._network(self._rows).square().mean().backward()
        self._optimizer.step()

    def calibrate(self) -> None:
        """Set the size for about ITERATION_NS of CPU time, from warm iterations."""
        for _ in range(CALIBRATIONS_MAX):
            costs = [measure(self.iterate)[0] for _ in range(WARM_ITERATIONS + 30)][WARM_ITERATIONS:]
            if not self.correct(statistics.median(costs)):
                return

    def correct(self, cost_ns: float) -> bool:
        """Change the size if `cost_ns` is too far off. Returns whether the size has changed."""
        columns = self.columns
        if is_near(cost_ns):
            return False
        self.set_columns(round(columns * ITERATION_NS / cost_ns))
        print(f"gate: {cost_ns / 1e6:.2f} ms per iteration: {columns} to {self.columns} columns", file=sys.stderr)
        return self.columns != columns


def is_near(cost_ns: float) -> bool:
    return abs(cost_ns - ITERATION_NS) <= TOLERANCE * ITERATION_NS


def measure(iterate: Any) -> tuple[int, int]:
    begun_ns, wall_ns = time.thread_time_ns(), time.perf_counter_ns()
    iterate()
    return time.thread_time_ns() - begun_ns, time.perf_counter_ns() - wall_ns


def run_block(switch: Switch, iterate: Any, mode: Mode) -> tuple[float, float]:
    switch.set(mode)
    rows = [measure(iterate) for _ in range(BLOCK_ITERATIONS)][BLOCK_SKIPPED:]
    return statistics.median(row[0] for row in rows), statistics.median(row[1] for row in rows)


def compare(pairs: list[tuple[float, float]], dice: random.Random) -> dict[str, float]:
    """Median difference of the pairs with its 95 % bootstrap interval, and as a share of the second's median."""
    differences = [first - second for first, second in pairs]
    medians = sorted(statistics.median(dice.choices(differences, k=len(differences))) for _ in range(500))
    base = statistics.median(second for _, second in pairs)
    middle = statistics.median(differences)
    return {
        "difference_ns": round(middle),
        "low_ns": round(medians[12]),
        "high_ns": round(medians[487]),
        "percent": round(100 * middle / base, 3),
        "percent_high": round(100 * medians[487] / base, 3),
    }


def boundary_in_c_ns(session: Any) -> float:
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "caller.c", Path(folder) / "caller.so"
        source.write_text(CALLER)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
        caller = ctypes.CDLL(str(library))
        caller.call_ns.restype = ctypes.c_long
        caller.call_ns.argtypes = [ctypes.c_void_p, ctypes.c_long]
        boundary = ctypes.cast(session._library.salus_boundary, ctypes.c_void_p)
        return min(caller.call_ns(boundary, BOUNDARY_CALLS) for _ in range(5)) / BOUNDARY_CALLS


Block = tuple[float, float]
Pairs = dict[str, list[tuple[Block, Block]]]


def run_pairs(switch: Switch, training: Training, count: int, dice: random.Random) -> Pairs:
    seen: Pairs = {name: [] for name in KINDS}
    for number in range(count):
        for name, modes in KINDS.items():
            order = [0, 1] if dice.random() < 0.5 else [1, 0]
            blocks: dict[int, Block] = {}
            for place in order:
                blocks[place] = run_block(switch, training.iterate, modes[place])
            seen[name].append((blocks[0], blocks[1]))
        if number % 50 == 49:
            print(f"gate: {number + 1} of {count} pairs", file=sys.stderr, flush=True)
    return seen


def iteration_ns(seen: Pairs) -> float:
    """The time of an iteration in the compared blocks without the wrappers."""
    return statistics.median(second[0] for _, second in seen["adaptor"])


def run_job(pairs: int) -> None:
    import torch
    from salus_job import process

    torch.manual_seed(0)
    training = Training(torch)
    training.calibrate()
    watch = process.current_watch()
    assert watch is not None
    assert watch._is_attached
    session = watch.session
    dice = random.Random(0)
    switch = Switch(torch, session)
    for _ in range(CALIBRATIONS_MAX):
        if not training.correct(iteration_ns(run_pairs(switch, training, PILOT_PAIRS, dice))):
            break
    begun = session.read_counters()
    seen = run_pairs(switch, training, pairs, dice)
    switch.set(WATCHED)
    ended = session.read_counters()
    cost_ns = iteration_ns(seen)
    result: dict[str, Any] = {"n": pairs, "iteration_ns": round(cost_ns), "is_on_target": is_near(cost_ns)}
    for name, rows in seen.items():
        result[name] = compare([(first[0], second[0]) for first, second in rows], dice)
        result[f"{name}_wall"] = compare([(first[1], second[1]) for first, second in rows], dice)
    result["ratio"] = round(1 + result["adaptor"]["percent"] / 100, 5)
    result["boundaries"] = ended["iteration_count"] - begun["iteration_count"]
    result["handovers"] = ended["handover_count"] - begun["handover_count"]
    result["boundary_in_c_ns"] = round(boundary_in_c_ns(session), 1)
    print(json.dumps(result), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--job", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        run_job(arguments.pairs)
        return
    # Not at the top: the job has only salus_job on its path.
    from tests.support.launch import launch_arguments
    from tests.support.salusd import Salusd

    subprocess.run(["make", "-s", "-C", JOB / "libsalus", "all"], check=True)
    with Salusd(memory="1G", config="MaxLanes=1") as daemon:
        launch = launch_arguments(daemon, {"persistent_bytes": 512 * MIB, "ephemeral_bytes": 64 * MIB})
        job = [sys.executable, __file__, "--job", "--pairs", str(arguments.pairs)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        outcome = subprocess.run([sys.executable, *launch, *job], cwd=ROOT, env=environment, check=False)
    raise SystemExit(outcome.returncode)


if __name__ == "__main__":
    main()
