"""Iterations run and are recorded once each, however the messages of sessions are interleaved."""

from __future__ import annotations

import signal
import sqlite3
from typing import Any

import pytest

from tests.support.workers import overlaps


@pytest.mark.parametrize("policy", ["fair", "fifo"])
def test_sessions_on_one_core_continue_if_their_returns_arrive_in_reverse_order(
    salusd: Any, crew: Any, policy: str
) -> None:
    """On one core a successor may run a whole iteration before the session that started it can send RETURN."""
    daemon = salusd(config=f"MaxLanes=1\nPolicy={policy}", cores="0")
    group = crew(daemon)
    workers = [group.start(iteration_us=50, iterations=600) for _ in range(3)]
    group.ready()
    for worker in workers:
        worker.go()
    for worker in workers:
        assert worker.finish()["count"] == 600
    assert overlaps(workers) == 0


def test_an_iteration_that_idleness_interrupts_is_recorded_once(salusd: Any, crew: Any) -> None:
    daemon = salusd(config="MaxLanes=1\nIdleRelease=2ms\nPolicy=fair")
    group = crew(daemon)
    workers = [group.start(iteration_us=1000, break_us=8000, iterations=40) for _ in range(2)]
    group.ready()
    for worker in workers:
        worker.go()
    for worker in workers:
        assert worker.finish()["count"] == 40
    daemon.wait_for(lambda status: not status["sessions"], "both sessions have left")
    daemon.stop()
    with sqlite3.connect(daemon.database) as database:
        counts = database.execute("select iteration_count from sessions").fetchall()
        (used,) = database.execute("select sum(iteration_count) from usage").fetchone()
    assert counts == [(40,), (40,)]
    assert used == 80


def test_iterations_that_a_killed_holder_ran_under_its_last_lease_are_recorded(salusd: Any, crew: Any) -> None:
    """No other session wants the lane, so all its iterations run under one lease."""
    daemon = salusd(config="MaxLanes=1\nIdleRelease=30")
    group = crew(daemon)
    worker = group.start(iteration_us=1000, iterations=100_000)
    group.ready()
    worker.go()
    worker.wait_iterations(50)
    worker.signal(signal.SIGKILL)
    daemon.wait_for(lambda status: not status["sessions"], "the session is gone")
    daemon.stop()
    with sqlite3.connect(daemon.database) as database:
        (count,) = database.execute("select iteration_count from sessions").fetchone()
        (used,) = database.execute("select sum(iteration_count) from usage").fetchone()
    assert count >= 50
    assert used == count
