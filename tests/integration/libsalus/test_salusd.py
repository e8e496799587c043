"""libsalus and salusd together, where the order of what they say is least friendly."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.workers import overlaps


@pytest.mark.parametrize("policy", ["fair", "fifo"])
def test_mates_on_one_core_go_on_though_their_returns_overtake_each_other(salusd: Any, crew: Any, policy: str) -> None:
    """On one core a successor may run its whole iteration before the one who started it gets to say RETURN."""
    daemon = salusd(config=f"MaxLanes=1\nPolicy={policy}", cores="0")
    group = crew(daemon)
    workers = [group.start(iteration_us=50, iterations=600) for _ in range(3)]
    group.ready()
    for worker in workers:
        worker.go()
    for worker in workers:
        assert worker.finish()["count"] == 600
    assert overlaps(workers) == 0
