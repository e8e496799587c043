"""Real loops have no boundary inside an iteration, and enough boundaries between them (docs/boundaries.md)."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tools.boundaries import DOCUMENT, ROOT, SETS, run_set, table_of

# Boundaries that may be missing: while the rule learns (two cycles of steps, four backwards) and at the job's end.
LEARNING_ITERATIONS = 4


@functools.cache
def results_of(name: str) -> dict[str, Any]:
    """One process for a whole set, for all tests here."""
    return run_set(name)


@pytest.mark.parametrize("name", SETS)
def test_no_boundary_lies_in_the_middle_of_an_iteration(name: str) -> None:
    results = results_of(name)
    bad = {loop: one["log"] for loop, one in results.items() if one["middles"] or one["middles_known"]}
    assert bad == {}


@pytest.mark.parametrize("name", SETS)
def test_the_adaptor_never_switched_itself_off(name: str) -> None:
    assert [loop for loop, one in results_of(name).items() if one["is_off"]] == []


def test_known_loops_lose_boundaries_only_while_learning() -> None:
    results = results_of("known")
    lost = {loop: one["iterations"] - one["boundaries"] for loop, one in results.items()}
    assert {loop: count for loop, count in lost.items() if count > LEARNING_ITERATIONS} == {}


def test_the_table_in_the_documentation_is_up_to_date() -> None:
    wanted = table_of({name: results_of(name) for name in SETS})
    assert wanted in (ROOT / DOCUMENT).read_text(), "docs/boundaries.md is stale; run make boundaries"
