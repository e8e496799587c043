"""Hand-over of a lane between two processes against a bare futex ping-pong, alternating in one run on the same CPUs.

A time runs from the boundary of one process to the start of the other's iteration. Iterations last 200 us, and the
daemon sleeps on a CPU of its own if there is one left. `ratio` is peers against the futex. On one CPU the successor
reports the hand-over once it runs: `notice` is the cost of its first block with that report, `told` the cost of a
hand-over that the holder reports before it sleeps. The benchmark also measures the cost of survivors by size, of the
trap, and of a change of domain by the bytes that survive it. `make bench BENCH=handover`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

LIBSALUS = Path(__file__).parents[2] / "nodedaemon" / "job" / "libsalus"
SOURCE = Path(__file__).parent / "native" / "handover.c"
REPEATS = 7
ROUNDS = 1000
SIZES_BYTES = (64 << 10, 1 << 20, 8 << 20)


def build(directory: Path) -> Path:
    """The benchmark program, linked with libsalus and salusd's side of the pages."""
    subprocess.run(["make", "-s", "-C", LIBSALUS, "build/libsalus-bench.so"], check=True)
    program, library = directory / "handover", LIBSALUS / "build" / "libsalus-bench.so"
    folders = (LIBSALUS, Path(__file__).parents[1] / "support" / "native")
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", f"-Wl,-rpath,{library.parent}"]
    flags += [f"-I{folder}" for folder in folders]
    subprocess.run(["gcc", *flags, "-o", program, SOURCE, LIBSALUS / "futex.c", library], check=True)
    return program


def measure_ns(program: Path, mode: str, rounds: int, cpus: tuple[int, int], size_bytes: int = 0) -> float:
    command = [program, mode, str(rounds), *map(str, cpus), str(size_bytes)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout)


def compare(program: Path, cpus: tuple[int, int]) -> dict[str, float]:
    """Both sides take turns, so both see the same machine."""
    samples: dict[str, list[float]] = {mode: [] for mode in ("futex", "peers", "told", "notice", "trap")}
    for repeat in range(REPEATS):
        for mode, values in samples.items():
            values.append(measure_ns(program, mode, ROUNDS, cpus))
        print(f"cpus {cpus}: {repeat + 1} of {REPEATS}", file=sys.stderr)
    medians = {f"{mode}_ns": statistics.median(values) for mode, values in samples.items()}
    return medians | {"ratio": round(medians["peers_ns"] / medians["futex_ns"], 2)}


def main() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    pinnings = {"same_cpu": (cpus[0], cpus[0])}
    if len(cpus) > 1:
        pinnings["two_cpus"] = (cpus[0], cpus[1])
    with tempfile.TemporaryDirectory() as directory:
        program = build(Path(directory))
        result: dict[str, object] = {"n": REPEATS, "rounds": ROUNDS}
        result |= {name: compare(program, pair) for name, pair in pinnings.items()}
        apart = pinnings.get("two_cpus", pinnings["same_cpu"])
        for mode, name in (("peers", "survivors"), ("domain", "domain")):
            for size_bytes in (0, *SIZES_BYTES):
                samples = [measure_ns(program, mode, 50, apart, size_bytes) for _ in range(3)]
                result[f"{name}_{size_bytes}_ns"] = statistics.median(samples)
                print(f"{name} {size_bytes} bytes: {statistics.median(samples):.0f} ns", file=sys.stderr)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
