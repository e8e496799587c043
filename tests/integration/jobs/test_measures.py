"""Measured bytes equal arithmetic and torch's profiler, and a second run fits into what the first one used."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from nodedaemon.wire.messages import ProfileReport, WelcomeFlag
from tests.support.lane_daemon import MIB, LaneDaemon
from tests.support.torch_job import ROOT, TorchJob, example

PROGRAM = str(ROOT / "tests" / "support" / "measured_models.py")
UNKNOWN = {"lane_bytes": 32 * MIB, "ephemeral_bytes": 32 * MIB, "device_bytes": 64 * MIB}


@pytest.mark.parametrize("model", ["mlp", "cnn", "transformer"])
def test_live_bytes_equal_arithmetic_and_the_profiler(
    model: str, start_daemon: Callable[..., LaneDaemon], start_job: Callable[..., TorchJob]
) -> None:
    daemon = start_daemon(**UNKNOWN)
    seen = json.loads(start_job(PROGRAM, model, daemon=daemon).finish())
    assert seen["live_persistent_bytes"] == seen["analytic_bytes"]
    assert seen["live_ephemeral_bytes"] == seen["profiled_bytes"]


@pytest.mark.parametrize("name", ["cnn", "lstm", "gan"])
def test_a_second_run_stays_below_the_recorded_ephemeral_bytes(
    name: str, start_daemon: Callable[..., LaneDaemon], start_job: Callable[..., TorchJob]
) -> None:
    command = example(name, iterations=8, batch=8)
    first = last_profile(start_daemon(**UNKNOWN, flags=WelcomeFlag.UNGATED), start_job, command)
    assert first.rule
    caps = {"lane_bytes": 32 * MIB, "ephemeral_bytes": first.ephemeral_bytes, "device_bytes": 64 * MIB}
    second = last_profile(start_daemon(**caps, rule=first.rule), start_job, command)
    assert second.ephemeral_bytes <= first.ephemeral_bytes
    assert second.spill_count == 0
    assert (second.model_hash, second.input_hash) == (first.model_hash, first.input_hash)
    assert second.iteration_count >= first.iteration_count


def test_another_batch_size_changes_the_input_hash_and_not_the_model_hash(
    start_daemon: Callable[..., LaneDaemon], start_job: Callable[..., TorchJob]
) -> None:
    one, other = (
        last_profile(start_daemon(**UNKNOWN), start_job, example("gan", iterations=6, batch=batch)) for batch in (8, 16)
    )
    assert one.model_hash == other.model_hash != 0
    assert one.input_hash != other.input_hash


def last_profile(daemon: LaneDaemon, start_job: Callable[..., TorchJob], command: list[str]) -> ProfileReport:
    start_job(*command, daemon=daemon).finish()
    (session,) = daemon.sessions.values()
    return session.profiles[-1]
