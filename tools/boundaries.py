"""Writes the table of docs/boundaries.md from the results of the loops.

usage: python -m tools.boundaries   (make boundaries)
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCUMENT = "docs/boundaries.md"
SETS = {
    "known": "Design set: the rule was designed on these loops",
    "held_out": "Held-out set: written after the rule was frozen. Two of these loops led to a fix",
    "fresh": "Fresh set: written after that fix. It led to one more fix",
    "sealed": "Sealed set: written after the last change to the rule",
}
MARKS = ("<!-- table begins -->\n", "<!-- table ends -->\n")


def run_set(name: str) -> dict[str, Any]:
    """Runs one set in a process of its own, because its hooks cannot be removed from torch."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    child = subprocess.run(
        [sys.executable, "-m", "tests.support.loops.run", name],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    if child.returncode != 0:
        raise RuntimeError(f"loops: {name}: {child.stderr[-4000:]}")
    results: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return results


def table_of(results: dict[str, dict[str, Any]]) -> str:
    lines: list[str] = []
    for name, loops in results.items():
        lines += [
            f"**{SETS[name]}.**",
            "",
            "| loop | true iterations | boundaries | in the middle | boundaries, known job | in the middle |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {loop} | {one['iterations']} | {one['boundaries']} | {one['middles']} "
            f"| {one['boundaries_known']} | {one['middles_known']} |"
            for loop, one in loops.items()
        ]
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    table = table_of({name: run_set(name) for name in SETS})
    path = ROOT / DOCUMENT
    between = re.compile(f"(?<={re.escape(MARKS[0])}).*(?={re.escape(MARKS[1])})", re.DOTALL)
    path.write_text(between.sub(lambda _: table + "\n", path.read_text()))


if __name__ == "__main__":
    main()
