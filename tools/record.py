"""Run a benchmark and keep a summary of it in the tree: `make record BENCH=NAME [REPEAT=5] [ARGS=...]`.

Writes docs/benchmarks/NAME.json: the machine; date, commit and headline figures of each run; the last run's result;
and, of several runs, the median, minimum and maximum of every figure. Lists, for example one entry per job, are kept
for the last run only. A run that fails ends the series, and the runs before it are kept.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tools.cited_numbers import FOLDER, ROOT

COLUMNS = 110


def machine():
    """What the figures depend on, as far as the system reports it."""
    processors = [line.partition(":")[2].strip() for line in lines("/proc/cpuinfo") if line.startswith("model name")]
    total_kib = next((int(line.split()[1]) for line in lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    return {
        "processor": processors[0] if processors else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(total_kib / 2**20),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "torch": package_version("torch"),
        "slurm": output_of("slurmctld", "-V"),
        "gpu": None,
    }


def lines(path):
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def package_version(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def output_of(*argv):
    try:
        environment = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}
        return subprocess.run(
            argv, capture_output=True, text=True, check=True, env=environment, cwd=ROOT
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def commit():
    name = output_of("git", "rev-parse", "--short=10", "HEAD") or "unknown"
    # Recorded files and pages are not part of the program that was measured.
    changed = output_of("git", "status", "--porcelain", "--untracked-files=no", "--", ".", f":!{FOLDER}", ":!docs/*.md")
    return f"{name}+changes" if changed else name


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bench")
    parser.add_argument("--repeat", type=int, default=1, help="how many runs to make and to summarise")
    options, arguments = parser.parse_known_args()
    script = ROOT / "tests" / "bench" / f"{options.bench}.py"
    if not script.is_file():
        sys.exit(f"record: no {script.relative_to(ROOT)}")
    runs = []
    for number in range(1, options.repeat + 1):
        runs.append(run_once(script, arguments, number))
        (ROOT / FOLDER / f"{options.bench}.json").write_text(layout(summary(options.bench, machine(), runs)) + "\n")
        print(f"record: {FOLDER / options.bench}.json: run {number} of {options.repeat}", file=sys.stderr)
    print("record: write it into the pages with: make numbers", file=sys.stderr)


def run_once(script, arguments, number):
    """Run a benchmark. Returns its result, date and commit. SALUS_BENCH_RUN is the number of the run in the series."""
    started, at_commit = datetime.now(UTC), commit()
    environment = {**os.environ, "SALUS_BENCH_RUN": str(number)}
    argv = [sys.executable, str(script), *arguments]
    done = subprocess.run(argv, check=False, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    sys.stdout.write(done.stdout)
    if done.returncode != 0:
        sys.exit(f"record: {script.stem} failed with status {done.returncode}; this run is not recorded")
    return {
        "date": started.isoformat(timespec="seconds"),
        "seconds": round((datetime.now(UTC) - started).total_seconds()),
        "commit": at_commit,
        "arguments": arguments,
        "result": json.loads(done.stdout.strip().splitlines()[-1]),
    }


def summary(bench, on_machine, runs):
    """The record of several runs that is kept in the tree."""
    results = [run["result"] for run in runs]
    headed = [{**run, "headline": headline(run["result"])} for run in runs]
    for run in headed:
        del run["result"]
    record = {"bench": bench, "machine": on_machine, "runs": headed, "last": results[-1]}
    if len(results) > 1:
        functions = {"median": statistics.median, "min": min, "max": max}
        record |= {name: combined(results, function) for name, function in functions.items()}
    return record


def headline(result):
    """The figures at the top level of a result, and dictionaries of figures, such as gains by configuration."""
    figures = {key: value for key, value in result.items() if is_number(value)}
    groups = {
        key: value for key, value in result.items() if isinstance(value, dict) and all(map(is_number, value.values()))
    }
    return figures | groups


def combined(results, function):
    """Apply `function` to several results, figure by figure. A figure that is missing in one of them is left out."""
    found = {}
    for key, value in results[-1].items():
        values = [result.get(key) for result in results]
        if isinstance(value, dict) and all(isinstance(other, dict) for other in values):
            found[key] = combined(values, function)
        elif all(map(is_number, values)):
            found[key] = function(values)
    return found


def is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def layout(value, depth=0):
    """JSON with filled lines: simple values share a line, dictionaries and lists that are too long are split."""
    text, pad = json.dumps(value), " " * (depth + 1)
    if not isinstance(value, dict | list) or (depth and len(text) + depth <= COLUMNS):
        return text
    keys = [f"{json.dumps(key)}: " for key in value] if isinstance(value, dict) else [""] * len(value)
    items = list(value.values()) if isinstance(value, dict) else value
    filled, is_open = [], False
    for key, item in zip(keys, items, strict=True):
        entry = key + layout(item, depth + 1)
        is_simple = not isinstance(item, dict | list)
        if is_open and is_simple and len(pad + filled[-1] + entry) + 2 <= COLUMNS:
            filled[-1] += f", {entry}"
        else:
            filled.append(entry)
        is_open = is_simple
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return opening + "\n" + ",\n".join(pad + line for line in filled) + "\n" + pad[1:] + closing


if __name__ == "__main__":
    main()
