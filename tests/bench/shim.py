"""What libsalus costs a CUDA call: bare emulator against preloaded library, by instructions and time, in one run.

Instructions are counted by valgrind at two loop lengths, so that everything but the call cancels out. No session is
attached, so the figures are what every job pays. `forwarded` is a call that is not wrapped.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support import emulator as emulators
from tests.support.cuda_node import LIBSALUS, build_libsalus

CALLS = ("forwarded", "info", "launch", "allocate")
PROGRAM = r"""
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
typedef int (*call)();
static call get;
static call find(const char *name)
{
    void *found = NULL;
    get(name, &found, 12000, (uint64_t)0, NULL);
    return (call)found;
}
int main(int count, char **words)
{
    static const char image[] = "// salus-kernel: k ns=1 sm=1 effect=none\n.visible .entry k() { ret; }";
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context, *module, *function;
    long turns = atol(words[2]);
    int device;
    uint64_t address;
    size_t free_bytes, total_bytes;
    struct timespec start, end;
    (void)count;
    get = (call)dlsym(library, "cuGetProcAddress_v2");
    if (find("cuInit")(0) || find("cuDeviceGet")(&device, 0) || find("cuDevicePrimaryCtxRetain")(&context, device) ||
        find("cuCtxSetCurrent")(context) || find("cuModuleLoadData")(&module, image) ||
        find("cuModuleGetFunction")(&function, module, "k"))
        return 1;
    call current = find("cuCtxGetCurrent"), info = find("cuMemGetInfo"), launch = find("cuLaunchKernel");
    call allocate = find("cuMemAlloc"), release = find("cuMemFree");
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (long i = 0; i < turns; i++) {
        if (!strcmp(words[1], "forwarded"))
            current(&context);
        else if (!strcmp(words[1], "info"))
            info(&free_bytes, &total_bytes);
        else if (!strcmp(words[1], "launch"))
            launch(function, 1, 1, 1, 1, 1, 1, 0, (uint64_t)0, (uint64_t)0, (uint64_t)0);
        else if (allocate(&address, (size_t)4096) || release(address))
            return 1;
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%.1f\n", ((end.tv_sec - start.tv_sec) * 1e9 + (end.tv_nsec - start.tv_nsec)) / turns);
    return 0;
}
"""


class Bench:
    def __init__(self, directory: Path) -> None:
        build_libsalus()
        self._emulator = emulators.make(directory, "tiny-1g")
        self._program = directory / "program"
        source = directory / "program.c"
        source.write_text(PROGRAM)
        subprocess.run(["cc", "-O2", "-w", "-o", str(self._program), str(source), "-ldl"], check=True)

    def _environment(self, *, has_shim: bool) -> dict[str, str]:
        extra = {"LD_PRELOAD": str(LIBSALUS / "cuda/libcuda.so.1")} if has_shim else {}
        return self._emulator.environment(**extra)

    def time_ns(self, call: str, turns: int, *, has_shim: bool) -> float:
        command = [str(self._program), call, str(turns)]
        answer = subprocess.run(
            command, env=self._environment(has_shim=has_shim), capture_output=True, text=True, check=True
        )
        return float(answer.stdout)

    def _instructions(self, call: str, turns: int, *, has_shim: bool) -> int:
        valgrind = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
        answer = subprocess.run(
            [*valgrind, str(self._program), call, str(turns)],
            env=self._environment(has_shim=has_shim),
            capture_output=True,
            text=True,
            check=True,
        )
        found = re.search(r"I\s+refs:\s+([\d,]+)", answer.stderr)
        assert found is not None, answer.stderr
        return int(found[1].replace(",", ""))

    def instructions_per_call(self, call: str, *, has_shim: bool) -> float:
        short, long = 200, 1200
        counts = [self._instructions(call, turns, has_shim=has_shim) for turns in (short, long)]
        return (counts[1] - counts[0]) / (long - short)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=20000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    found: dict[str, dict[str, float]] = {}
    os.environ.pop("LD_PRELOAD", None)
    with tempfile.TemporaryDirectory(prefix="salus-shim-") as name:
        bench = Bench(Path(name))
        for call in CALLS:
            sys.stderr.write(f"shim: {call}\n")
            times: dict[bool, list[float]] = {False: [], True: []}
            for _ in range(options.repeats):
                for has_shim in (False, True):
                    times[has_shim].append(bench.time_ns(call, options.turns, has_shim=has_shim))
            bare, shim = (statistics.median(times[has_shim]) for has_shim in (False, True))
            counts = [bench.instructions_per_call(call, has_shim=has_shim) for has_shim in (False, True)]
            found[call] = {
                "bare_ns": round(bare, 1),
                "shim_ns": round(shim, 1),
                "ratio": round(shim / bare, 3),
                "bare_instructions": round(counts[0], 1),
                "shim_instructions": round(counts[1], 1),
                "added_instructions": round(counts[1] - counts[0], 1),
            }
    sys.stdout.write(json.dumps({"n": options.turns * options.repeats, **found}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
