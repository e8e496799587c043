"""Measured bytes match arithmetic and torch's profiler, and a second run fits into what the first one used."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from nodedaemon.core.events import SessionOverran
from tests.support.one_lane import OneLaneDaemon
from tests.support.torch_job import ROOT, TorchJob, example

PROGRAM = str(ROOT / "tests" / "support" / "measured_models.py")

StartJob = Callable[..., TorchJob]


@pytest.fixture
def daemon(one_lane: Callable[..., OneLaneDaemon]) -> OneLaneDaemon:
    return one_lane(memory="2G", Headroom="0%")


@pytest.mark.parametrize("model", ["mlp", "cnn", "transformer"])
def test_live_bytes_match_the_arithmetic_and_the_profiler(
    model: str, daemon: OneLaneDaemon, start_job: StartJob
) -> None:
    counters = json.loads(start_job(PROGRAM, model, daemon=daemon).finish())
    assert counters["live_persistent_bytes"] == counters["analytic_bytes"]
    assert counters["live_ephemeral_bytes"] == counters["profiled_bytes"]


@pytest.mark.parametrize("name", ["cnn", "lstm", "gan"])
def test_a_second_run_stays_below_the_recorded_ephemeral_bytes(
    name: str, daemon: OneLaneDaemon, start_job: StartJob
) -> None:
    """The first run has the device to itself. The second one shares it, within the profile of the first."""
    jobs = []
    for _ in range(2):
        jobs.append(start_job(*example(name, iterations=8, batch=8), daemon=daemon, run={"signature": name}))
        jobs[-1].finish()
        daemon.wait_recorded()
    (profile,) = daemon.query("select * from profiles where signature = ?", name)
    first, second = daemon.query(
        "select * from profile_runs where profile_id = ? order by measured_utc_ns", profile["id"]
    )
    assert second["ephemeral_bytes"] <= first["ephemeral_bytes"]
    assert second["iteration_count"] >= first["iteration_count"] > 0
    assert profile["boundary_rule"]
    assert profile["stale_reason"] == "", "model and input are those of the first run"
    session = daemon.attached_session(jobs[1].process.pid)
    assert daemon.iteration_count(session) > 0, "it ran in the lane"
    assert daemon.events(SessionOverran, session) == [], "no block was too large for the lane"


def test_another_batch_size_changes_the_input_hash_and_not_the_model_hash(
    daemon: OneLaneDaemon, start_job: StartJob
) -> None:
    for batch in (8, 16):
        command = example("gan", iterations=6, batch=batch)
        start_job(*command, daemon=daemon, run={"signature": f"batch {batch}"}).finish()
    daemon.wait_recorded()
    one, other = daemon.query("select * from profiles where signature like 'batch %'")
    assert one["model_hash"] == other["model_hash"] != ""
    assert one["input_hash"] != other["input_hash"]
