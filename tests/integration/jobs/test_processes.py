"""Trainers register, however they were started; launchers and loader workers do not. Faults are reported."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.support.lane_daemon import MIB, LaneDaemon
from tests.support.torch_job import ROOT, TorchJob, example

PROGRAM = str(ROOT / "tests" / "support" / "process_tree.py")
LANE = {"lane_bytes": 16 * MIB, "ephemeral_bytes": 16 * MIB, "device_bytes": 64 * MIB}


@pytest.mark.parametrize("kind", ["fork", "spawn", "loader-fork", "loader-spawn"])
def test_only_trainers_register(
    kind: str, start_daemon: Callable[..., LaneDaemon], start_job: Callable[..., TorchJob]
) -> None:
    daemon = start_daemon(**LANE)
    trainers = json.loads(start_job(PROGRAM, kind, daemon=daemon).finish())
    assert sorted(session.pid for session in daemon.sessions.values()) == sorted(trainers)


def test_a_fault_of_salus_is_reported_and_does_not_disturb_the_job(
    start_daemon: Callable[..., LaneDaemon], start_job: Callable[..., TorchJob]
) -> None:
    daemon = start_daemon(**LANE)
    command = example("lstm", iterations=4, width=16)
    sabotage = "import sys, runpy, salus_job.boundary as b\n"
    sabotage += "b.BoundaryRule.backward_left = lambda self: 1 / 0\n"
    sabotage += f"sys.argv = {command!r}; runpy.run_path(sys.argv[0], run_name='__main__')"
    job, plain = start_job("-c", sabotage, daemon=daemon), start_job(*command)
    assert job.output() == plain.finish()
    assert (job.process.returncode, job.errors) == (0, "")
    (session,) = daemon.sessions.values()
    daemon.wait_until(lambda: session.faults, "the daemon learns why")
    assert session.faults[0].is_off
    assert "ZeroDivisionError" in session.faults[0].text


def test_a_job_runs_without_salus_if_it_is_refused_or_finds_no_daemon(
    start_daemon: Callable[..., LaneDaemon], start_job: Callable[..., TorchJob]
) -> None:
    daemon = start_daemon(**LANE, refusal="not today")
    command = example("inference", iterations=4, width=16)
    refused, lost = (
        start_job(*command, daemon=daemon),
        start_job(*command, SALUS_SOCKET="nowhere", PYTHONPATH=str(ROOT / "nodedaemon" / "job")),
    )
    asked = start_job(*command, daemon=daemon, SALUS_VERBOSE="1")
    assert refused.output() == lost.output() == asked.output() != ""
    assert (refused.errors, lost.errors) == ("", "")
    assert asked.errors == "salus: hello: not today; the job continues without Salus\n"


def test_a_job_that_disables_salus_does_not_register(
    start_daemon: Callable[..., LaneDaemon], start_job: Callable[..., TorchJob]
) -> None:
    daemon = start_daemon(**LANE)
    assert start_job(*example("inference", iterations=4, width=16), daemon=daemon, SALUS_DISABLE="1").finish()
    assert daemon.sessions == {}


def test_a_job_marks_its_iterations_itself(
    start_daemon: Callable[..., LaneDaemon], start_job: Callable[..., TorchJob]
) -> None:
    daemon = start_daemon(**LANE)
    code = """
import torch, salus_job
assert salus_job.declare("1M", ephemeral="1M")
model = torch.nn.Linear(4, 4)
for _ in range(7):
    with salus_job.iteration():
        model(torch.randn(2, 4))
        model(torch.randn(2, 4))
assert not salus_job.declare("1M")
"""
    start_job("-c", code, daemon=daemon).finish()
    (session,) = daemon.sessions.values()
    assert session.profiles[-1].iteration_count == 7
