"""An uncontended boundary makes no system call: a seccomp filter allows the program only exit, and it survives."""

from __future__ import annotations

from pathlib import Path

from tests.bench.handover import build, measure_ns


def test_a_boundary_that_nobody_contests_makes_no_system_call(tmp_path: Path) -> None:
    program = build(tmp_path)
    assert measure_ns(program, "boundary", 100_000, (0, 0)) > 0


def test_the_filter_ends_a_session_that_makes_a_system_call(tmp_path: Path) -> None:
    """Negative control: the same filter ends a session whose lease runs out, since it must then call the kernel."""
    program = build(tmp_path)
    assert measure_ns(program, "contested", 100_000, (0, 0)) == 0
