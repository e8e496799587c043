"""`make compare` runs a benchmark on two commits and compares the figures that both sides print."""

import subprocess
from pathlib import Path

import pytest

from tools import compare

ROOT = Path(__file__).resolve().parents[2]


def test_figures_are_the_numbers_of_a_result_by_path():
    result = {"n": 3, "sides": {"plain": 1.5, "is_fast": True}, "runs": [{"ms": 2}], "note": "text"}
    assert dict(compare.figures(result)) == {"n": 3, "sides.plain": 1.5, "runs.0.ms": 2}


def test_medians_of_common_figures_are_compared():
    base = [{"ms": 1, "old": 5}, {"ms": 2, "old": 5}, {"ms": 9, "old": 5}]
    new = [{"ms": 3}, {"ms": 1}, {"ms": 5}]
    assert compare.compared(base, new) == {"ms": {"base": 2, "new": 3, "ratio": 1.5}}


@pytest.mark.parametrize("arguments", [[], ["ARGS=--count 5"]])
def test_make_passes_arguments_that_the_program_accepts(arguments):
    command = ["make", "-n", "-o", ".venv/.stamp", "-o", "native", "compare", "BENCH=gate", "BASE=HEAD", *arguments]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    words = next(line for line in lines if "tools.compare" in line).split()
    options = compare.parse_options(words[words.index("tools.compare") + 1 :])
    assert (options.bench, options.base, options.rounds) == ("gate", "HEAD", 3)
    assert options.arguments == ([] if not arguments else ["--count", "5"])
