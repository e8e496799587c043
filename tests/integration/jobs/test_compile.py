"""torch.compile sees the same program with the adaptor as without: graphs, breaks and frames are equal."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.support.lane_daemon import MIB, LaneDaemon
from tests.support.torch_job import ROOT, TorchJob

PROGRAM = str(ROOT / "tests" / "support" / "compiled_graphs.py")


def test_graphs_and_breaks_equal_the_plain_run(
    start_daemon: Callable[..., LaneDaemon], start_job: Callable[..., TorchJob]
) -> None:
    daemon = start_daemon(lane_bytes=32 * MIB, ephemeral_bytes=32 * MIB, device_bytes=64 * MIB)
    plain, watched = start_job(PROGRAM), start_job(PROGRAM, daemon=daemon)
    expected, counted = json.loads(plain.finish()), json.loads(watched.finish())
    assert counted == expected
    # The control: the program does compile, and the adaptor did watch it.
    assert sum(one["graphs"] for one in expected.values()) > 0
    assert sum(one["breaks"] for one in expected.values()) > 0
    (session,) = daemon.sessions.values()
    assert session.profiles[-1].iteration_count > 1
