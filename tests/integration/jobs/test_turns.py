"""Two real jobs take turns in a lane that each overwrites, and their results equal those of a plain run."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable

import pytest

from nodedaemon.wire.messages import WelcomeFlag
from tests.support.lane_daemon import MIB, LaneDaemon
from tests.support.torch_job import DEADLINE_S, ROOT, TorchJob, example

# Enough iterations for several turns each, in a few seconds.
COMMANDS = {
    "cnn": {"iterations": 8, "epoch": 4, "batch": 8, "width": 8},
    "transformer": {"iterations": 6, "width": 32, "length": 16},
    "lstm": {"iterations": 8, "width": 32},
    "gan": {"iterations": 12, "width": 64},
    "inference": {"iterations": 20, "width": 128},
}
SEEDS = (0, 1)
RETURNS_MIN = 3

ShareLane = Callable[[str, int], tuple[LaneDaemon, list[TorchJob]]]


@functools.cache
def plain_outputs() -> dict[tuple[str, int], str]:
    keys = [(name, seed) for name in COMMANDS for seed in SEEDS]
    commands = json.dumps([example(name, seed=seed, **COMMANDS[name]) for name, seed in keys])
    job = TorchJob(str(ROOT / "tests" / "support" / "plain_examples.py"), commands)
    try:
        return dict(zip(keys, json.loads(job.finish()), strict=True))
    finally:
        job.close()


@pytest.fixture
def share_a_lane(start_daemon: Callable[..., LaneDaemon], start_job: Callable[..., TorchJob]) -> ShareLane:
    """A function that starts two jobs of one example. Neither begins before both wait, so that they alternate."""

    def start(name: str, flags: int) -> tuple[LaneDaemon, list[TorchJob]]:
        daemon = start_daemon(
            lane_bytes=32 * MIB, ephemeral_bytes=32 * MIB, device_bytes=128 * MIB, flags=flags, is_held_back=True
        )
        jobs = [start_job(*example(name, seed=seed, **COMMANDS[name]), daemon=daemon) for seed in SEEDS]
        daemon.wait_until(lambda: len(daemon.waiting) == len(jobs), "both jobs wait in the gate", DEADLINE_S)

        def open_gate() -> None:
            daemon.settings.is_held_back = False
            daemon.schedule()

        daemon.call(open_gate)
        return daemon, jobs

    return start


@pytest.mark.parametrize("name", COMMANDS)
def test_jobs_that_share_a_lane_have_the_results_of_a_plain_run(name: str, share_a_lane: ShareLane) -> None:
    daemon, jobs = share_a_lane(name, WelcomeFlag.TRAP)
    outputs = [job.finish() for job in jobs]
    assert outputs == [plain_outputs()[name, seed] for seed in SEEDS]
    for session in daemon.sessions.values():
        assert len(session.returns) >= RETURNS_MIN
        assert session.has_said_bye
        assert session.faults == []


@pytest.mark.parametrize("name", ["gan", "lstm", "transformer"])
def test_without_the_stash_the_results_differ(name: str, share_a_lane: ShareLane) -> None:
    """The negative control: it shows that the other job does overwrite survivors."""
    _, jobs = share_a_lane(name, WelcomeFlag.NOSTASH)
    outputs = [job.output() for job in jobs]
    assert all(output != plain_outputs()[name, seed] for output, seed in zip(outputs, SEEDS, strict=True))
