"""Run one benchmark alternately on two commits and compare their figures: `make compare BENCH=NAME BASE=COMMIT`.

Checks BASE out into a temporary worktree, builds it there, and alternates between BASE and this tree, so that a change
in the machine's speed affects both. Prints progress on standard error. The last line is JSON: for every number that
both sides print, the medians and their ratio (this tree over BASE).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def figures(result, path=()):
    """Every number of a result by its path, without booleans."""
    if isinstance(result, dict):
        for key, value in result.items():
            yield from figures(value, (*path, key))
    elif isinstance(result, list):
        for index, value in enumerate(result):
            yield from figures(value, (*path, str(index)))
    elif isinstance(result, int | float) and not isinstance(result, bool):
        yield ".".join(path), result


def run(tree, bench, arguments):
    """The figures of one run in a tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [".venv/bin/python", f"tests/bench/{bench}.py", *arguments]
    done = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return dict(figures(json.loads(done.stdout.strip().splitlines()[-1])))


def compared(base, new):
    """Medians of both sides and their ratio, for the figures that all runs have."""
    names = set.intersection(*(set(one) for one in (*base, *new)))
    rows = {}
    for name in sorted(names):
        sides = [statistics.median(one[name] for one in side) for side in (base, new)]
        rows[name] = {"base": sides[0], "new": sides[1], "ratio": round(sides[1] / sides[0], 3) if sides[0] else None}
    return rows


def parse_options(command=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bench")
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("arguments", nargs="*", help="passed to the benchmark")
    return parser.parse_args(command)


def main():
    options = parse_options()
    base, new = [], []
    with tempfile.TemporaryDirectory(prefix="salus-compare-") as directory:
        tree = Path(directory) / "base"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", tree, options.base], cwd=ROOT, check=True)
        try:
            (tree / ".venv").symlink_to((ROOT / ".venv").resolve())
            subprocess.run(["make", "-s", "-o", ".venv/.stamp", "native"], cwd=tree, check=True)
            for number in range(options.rounds):
                for side, where in ((base, tree), (new, ROOT)) if number % 2 == 0 else ((new, ROOT), (base, tree)):
                    print(f"compare: round {number + 1}: {'base' if where == tree else 'new'}", file=sys.stderr)
                    side.append(run(where, options.bench, options.arguments))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=False)
    print(json.dumps({"bench": options.bench, "rounds": options.rounds, "figures": compared(base, new)}))


if __name__ == "__main__":
    main()
