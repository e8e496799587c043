"""torch.compile sees the same program with the adaptor as without it: graphs, breaks and frames are equal."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.support.one_lane import OneLaneDaemon
from tests.support.torch_job import ROOT, TorchJob

PROGRAM = str(ROOT / "tests" / "support" / "compiled_graphs.py")


def test_graphs_and_breaks_equal_those_of_a_plain_run(
    one_lane: Callable[..., OneLaneDaemon], start_job: Callable[..., TorchJob]
) -> None:
    daemon = one_lane()
    plain, watched = start_job(PROGRAM), start_job(PROGRAM, daemon=daemon)
    expected, counted = json.loads(plain.finish()), json.loads(watched.finish())
    assert counted == expected
    # Negative control: the program is compiled, and the adaptor has watched it.
    assert sum(one["graphs"] for one in expected.values()) > 0
    assert sum(one["breaks"] for one in expected.values()) > 0
    assert daemon.iteration_count(daemon.attached_session(watched.process.pid)) > 1
