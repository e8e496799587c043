"""The uncontended boundary makes no system call: the program forbids itself all but exit, and lives to tell."""

from __future__ import annotations

from pathlib import Path

from tests.bench.handover import build, measure_ns


def test_a_boundary_that_nobody_contests_makes_no_system_call(tmp_path: Path) -> None:
    program = build(tmp_path)
    assert measure_ns(program, "boundary", 100_000, (0, 0)) > 0


def test_the_filter_would_have_ended_it(tmp_path: Path) -> None:
    """Negative control: the same filter ends a session whose lease runs out, since it must then call the kernel."""
    program = build(tmp_path)
    assert measure_ns(program, "contested", 100_000, (0, 0)) == 0
