"""Two real jobs take turns in a lane that both overwrite, and their results equal those of a plain run."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable

import pytest

from nodedaemon.core.events import GrantReturned
from tests.support.lane_session import MIB, POINTS_LIBRARY
from tests.support.one_lane import OneLaneDaemon, lane_held
from tests.support.torch_job import ROOT, TorchJob, example

# Enough iterations for several turns each: a successor runs until salusd knows about it.
COMMANDS = {
    "cnn": {"iterations": 40, "epoch": 4, "batch": 8, "width": 8},
    "transformer": {"iterations": 40, "width": 32, "length": 16},
    "lstm": {"iterations": 60, "width": 32},
    "gan": {"iterations": 60, "width": 64},
    "inference": {"iterations": 200, "width": 128},
}
SEEDS = (0, 1)
TURNS_MIN = 3
WITHOUT_STASH = {"SALUS_LIBRARY": str(POINTS_LIBRARY), "SALUS_TEST_NO_STASH": "1"}

ShareLane = Callable[..., list[TorchJob]]


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
def daemon(one_lane: Callable[..., OneLaneDaemon]) -> OneLaneDaemon:
    return one_lane(memory="2G", StrayAccess="trap")


@pytest.fixture
def share_a_lane(daemon: OneLaneDaemon, start_job: Callable[..., TorchJob]) -> ShareLane:
    """A function that starts two jobs of one example, which begin to take turns at the same time."""

    def start(name: str, **environment: str) -> list[TorchJob]:
        commands = [example(name, seed=seed, **COMMANDS[name]) for seed in SEEDS]
        with lane_held(daemon, 32 * MIB):
            jobs = [start_job(*command, daemon=daemon, **environment) for command in commands]
            for job in jobs:
                daemon.wait_state(job.process.pid, "waiting")
        return jobs

    return start


@pytest.mark.parametrize("name", COMMANDS)
def test_jobs_that_share_a_lane_have_the_results_of_a_plain_run(
    daemon: OneLaneDaemon, share_a_lane: ShareLane, name: str
) -> None:
    jobs = share_a_lane(name)
    assert [job.finish() for job in jobs] == [plain_outputs()[name, seed] for seed in SEEDS]
    for job in jobs:
        session = daemon.attached_session(job.process.pid)
        assert len(daemon.events(GrantReturned, session)) >= TURNS_MIN
        assert daemon.end_reason(session) == "finished"
        assert daemon.faults(session) == []


@pytest.mark.parametrize("name", ["gan", "lstm", "transformer"])
def test_without_the_stash_the_results_differ(share_a_lane: ShareLane, name: str) -> None:
    """Negative control: it shows that each job overwrites survivors of the other."""
    outputs = [job.output() for job in share_a_lane(name, **WITHOUT_STASH)]
    assert all(output != plain_outputs()[name, seed] for output, seed in zip(outputs, SEEDS, strict=True))
