"""Two real jobs take turns in one lane that the other overwrites, and compute what they compute alone."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable

import pytest

from nodedaemon.wire.messages import WelcomeFlag
from tests.support.lane_daemon import MIB, LaneDaemon
from tests.support.torch_job import DEADLINE_S, JOB, ROOT, TorchJob, example

# Iterations enough for several turns each, and sizes that keep a run at a few seconds.
COMMANDS = {
    "cnn": {"iterations": 8, "epoch": 4, "batch": 8, "width": 8},
    "transformer": {"iterations": 6, "width": 32, "length": 16},
    "lstm": {"iterations": 8, "width": 32},
    "gan": {"iterations": 12, "width": 64},
    "inference": {"iterations": 20, "width": 128},
}
SEEDS = (0, 1)
RETURNS_MIN = 3
NO_STASH = {"SALUS_LIBRARY": str(JOB / "libsalus" / "build" / "libsalus-points.so"), "SALUS_TEST_NO_STASH": "1"}


@functools.cache
def plain_outputs() -> dict[tuple[str, int], str]:
    keys = [(name, seed) for name in COMMANDS for seed in SEEDS]
    commands = json.dumps([example(name, seed=seed, **COMMANDS[name]) for name, seed in keys])
    job = TorchJob(str(ROOT / "tests" / "support" / "plain_examples.py"), commands)
    try:
        return dict(zip(keys, json.loads(job.finish()), strict=True))
    finally:
        job.close()


def share_a_lane(
    daemon: LaneDaemon, start_job: Callable[..., TorchJob], name: str, **environment: str
) -> list[TorchJob]:
    """Two jobs of one example; nobody starts before both wait, so that they really alternate."""
    jobs = [start_job(*example(name, seed=seed, **COMMANDS[name]), daemon=daemon, **environment) for seed in SEEDS]
    daemon.wait_until(lambda: len(daemon.waiting) == len(jobs), "both jobs wait in the gate", DEADLINE_S)

    def open_gate() -> None:
        daemon.settings.is_held_back = False
        daemon.schedule()

    daemon.call(open_gate)
    return jobs


def lane_settings(flags: int) -> dict[str, int | bool]:
    return {
        "lane_bytes": 32 * MIB,
        "ephemeral_bytes": 32 * MIB,
        "device_bytes": 128 * MIB,
        "flags": flags,
        "is_held_back": True,
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_jobs_that_share_a_lane_compute_what_they_compute_alone(
    name: str, start_daemon: Callable[..., LaneDaemon], start_job: Callable[..., TorchJob]
) -> None:
    daemon = start_daemon(**lane_settings(WelcomeFlag.TRAP))
    jobs = share_a_lane(daemon, start_job, name)
    outputs = [job.finish() for job in jobs]
    assert outputs == [plain_outputs()[name, seed] for seed in SEEDS]
    for session in daemon.sessions.values():
        assert len(session.returns) >= RETURNS_MIN
        assert session.has_said_bye
        assert session.faults == []


@pytest.mark.parametrize("name", ["gan", "lstm", "transformer"])
def test_without_the_stash_they_compute_something_else(
    name: str, start_daemon: Callable[..., LaneDaemon], start_job: Callable[..., TorchJob]
) -> None:
    """The control: were survivors never overwritten, the test above would pass without any guard."""
    daemon = start_daemon(**lane_settings(WelcomeFlag.RELAY))
    jobs = share_a_lane(daemon, start_job, name, **NO_STASH)
    outputs = [job.output() for job in jobs]
    assert all(output != plain_outputs()[name, seed] for output, seed in zip(outputs, SEEDS, strict=True))
