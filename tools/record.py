"""Run a benchmark and keep its result in the tree: `make record BENCH=NAME [RUNS=5] [REPEAT=5] [ARGS=...]`.

Writes docs/benchmarks/NAME.json: the last RUNS runs, each with date, commit, machine and how it was called. RUNS counts
what the file keeps, REPEAT how often the benchmark runs now; a run that fails ends the row, and nothing of it is kept.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tools.cited_numbers import FOLDER, ROOT


def machine():
    """What the numbers depend on, as far as the system tells."""
    processors = [line.partition(":")[2].strip() for line in lines("/proc/cpuinfo") if line.startswith("model name")]
    total_kib = next((int(line.split()[1]) for line in lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    return {
        "processor": processors[0] if processors else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(total_kib / 2**20),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "torch": package("torch"),
        "slurm": told("slurmctld", "-V"),
        "gpu": None,
    }


def lines(path):
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def package(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def told(*argv):
    try:
        environment = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}
        return subprocess.run(
            argv, capture_output=True, text=True, check=True, env=environment, cwd=ROOT
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def commit():
    name = told("git", "rev-parse", "--short=10", "HEAD") or "unknown"
    # What is recorded is not what was run with: the files of earlier benchmarks do not count as changes.
    changed = told("git", "status", "--porcelain", "--untracked-files=no", "--", ".", f":!{FOLDER}", ":!docs/*.md")
    return f"{name}+changes" if changed else name


def keep(path, run, run_count):
    """Add a run to a file; the oldest beyond `run_count` go."""
    record = json.loads(path.read_text()) if path.exists() else {"bench": path.stem, "runs": []}
    record["runs"] = [*record["runs"], run][-run_count:]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, sort_keys=False) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bench")
    parser.add_argument("--runs", type=int, default=1, help="runs that the file keeps")
    parser.add_argument("--repeat", type=int, default=1, help="runs to make now")
    options, arguments = parser.parse_known_args()
    script = ROOT / "tests" / "bench" / f"{options.bench}.py"
    if not script.is_file():
        sys.exit(f"record: no {script.relative_to(ROOT)}")
    for number in range(1, options.repeat + 1):
        run = made_run(script, arguments, number)
        keep(ROOT / FOLDER / f"{options.bench}.json", run, max(options.runs, options.repeat))
        print(f"record: {FOLDER / options.bench}.json: run {number} of {options.repeat}", file=sys.stderr)
    print("record: write it into the pages with: make numbers", file=sys.stderr)


def made_run(script, arguments, number):
    """Run a benchmark once: its result and where it comes from. SALUS_BENCH_RUN tells it which of the row it is."""
    started, at_commit = datetime.now(UTC), commit()
    environment = {**os.environ, "SALUS_BENCH_RUN": str(number)}
    argv = [sys.executable, str(script), *arguments]
    done = subprocess.run(argv, check=False, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    sys.stdout.write(done.stdout)
    if done.returncode != 0:
        sys.exit(f"record: {script.stem} failed with status {done.returncode}; nothing recorded")
    return {
        "date": started.isoformat(timespec="seconds"),
        "seconds": round((datetime.now(UTC) - started).total_seconds()),
        "commit": at_commit,
        "machine": machine(),
        "arguments": arguments,
        "result": json.loads(done.stdout.strip().splitlines()[-1]),
    }


if __name__ == "__main__":
    main()
