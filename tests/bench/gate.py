"""What watching a job costs while nobody else wants its lane: adaptor and lease, at iterations of about 5 ms.

Paired, in one process: blocks of iterations with the adaptor's wrappers in place and blocks without them take turns in
random order; a null control compares blocks without them to each other in the same way. Processor time of the thread is
compared, since other programs' work would drown the difference; the wall clock is printed beside it. What it costs to
place blocks in the lane instead of private memory is compared apart, without the wrappers.

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
ITERATION_NS = 5_000_000
BLOCK_ITERATIONS = 14
# The first ones of a block pay for the switch: type caches are empty after a method was replaced.
BLOCK_SKIPPED = 6
BOUNDARY_CALLS = 2_000_000
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
# What is compared: each first against its second.
KINDS = {"adaptor": (WATCHED, UNWATCHED), "placement": (UNWATCHED, PRIVATE), "null": (UNWATCHED, UNWATCHED)}


class Switch:
    """Puts the adaptor's wrappers in place and takes them out again."""

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
        # Also where nothing changes: replacing a method empties the interpreter's caches, and every block pays for it.
        for (owner, name), wrapper in zip(self._places, self._wrappers, strict=True):
            setattr(owner, name, wrapper if mode.is_watched else wrapper.__wrapped__)
        for hooks, kept in zip(self._hooks, self._kept, strict=True):
            hooks.clear()
            hooks.update(kept if mode.is_watched else {})
        if mode.is_placed != self._mode.is_placed:
            (self._session.persist_end if mode.is_placed else self._session.persist_begin)()
        self._mode = mode


def build_network(torch: Any, width: int) -> Any:
    """A network of 23 modules, as the facts about gating cost were measured with."""
    nn = torch.nn
    layers: list[Any] = []
    for number in range(7):
        layers += [nn.Conv2d(3 if number == 0 else width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten())


def calibrate(torch: Any) -> tuple[Any, Any]:
    """A training step that takes about ITERATION_NS of processor time, as a function."""
    for width in (4, 6, 8, 12, 16, 24):
        network = build_network(torch, width)
        optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9)
        rows = torch.randn(4, 3, 16, 16)

        def iterate(network: Any = network, optimizer: Any = optimizer, rows: Any = rows) -> None:
            optimizer.zero_grad()
            network(rows).square().mean().backward()
            optimizer.step()

        for _ in range(5):
            iterate()
        cost_ns = statistics.median(measure(iterate)[0] for _ in range(15))
        if cost_ns >= ITERATION_NS:
            break
    return iterate, cost_ns


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


def run_job(pairs: int) -> None:
    import torch
    from salus_job import process

    torch.manual_seed(0)
    iterate, cost_ns = calibrate(torch)
    watch = process.current_watch()
    assert watch is not None
    assert watch._is_attached
    session = watch._session
    dice = random.Random(0)
    switch = Switch(torch, session)
    seen: dict[str, list[tuple[tuple[float, float], tuple[float, float]]]] = {name: [] for name in KINDS}
    begun = session.figures()
    for number in range(pairs):
        for name, modes in KINDS.items():
            order = [0, 1] if dice.random() < 0.5 else [1, 0]
            blocks: dict[int, tuple[float, float]] = {}
            for place in order:
                blocks[place] = run_block(switch, iterate, modes[place])
            seen[name].append((blocks[0], blocks[1]))
        if number % 50 == 49:
            print(f"gate: {number + 1} of {pairs} pairs", file=sys.stderr, flush=True)
    switch.set(WATCHED)
    ended = session.figures()
    result: dict[str, Any] = {"n": pairs, "iteration_ns": round(cost_ns)}
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
    from tests.support.lane_daemon import MIB, LaneDaemon, Settings

    subprocess.run(["make", "-s", "-C", JOB / "libsalus", "all", "tests"], check=True)
    with tempfile.TemporaryDirectory() as folder:
        daemon = LaneDaemon(
            Path(folder), Settings(lane_bytes=64 * MIB, ephemeral_bytes=64 * MIB, device_bytes=256 * MIB)
        )
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{JOB}:{ROOT}",
            "SALUS_SOCKET": str(daemon.path),
        }
        try:
            command = [sys.executable, __file__, "--job", "--pairs", str(arguments.pairs)]
            raise SystemExit(subprocess.run(command, env=environment, check=False).returncode)
        finally:
            daemon.close()


if __name__ == "__main__":
    main()
