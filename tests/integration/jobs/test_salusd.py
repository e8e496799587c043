"""Real jobs on a real salusd: turns in one lane, declarations, and Ctrl-C while waiting."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.support.salusd import ROOT, Salusd, wait_until
from tests.support.torch_job import DEADLINE_S, TorchJob, example

MIB = 1 << 20
LSTM = example("lstm", iterations=200, width=32)
GAN = example("gan", iterations=200, width=64)
SIZES = {"persistent_bytes": 400 * MIB, "ephemeral_bytes": 32 * MIB, "wait_ms": 60_000}
TRAINING = """
import os, sys, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
"""
HOLDER = f"""{TRAINING}
model(torch.ones(1, 8))
print("holds", flush=True)
sys.stdin.readline()
"""
DECLARING = """
import sys, torch, salus_job
print(salus_job.declare(persistent=sys.argv[1], ephemeral=sys.argv[2]), flush=True)
model = torch.nn.Linear(8, 8)
for _ in range(20):
    model(torch.ones(1, 8)).sum().backward()
print("done", flush=True)
sys.stdin.readline()
"""

UNPATCHED = {
    "SALUS_LIBRARY": str(ROOT / "nodedaemon" / "job" / "libsalus" / "build" / "libsalus-points.so"),
    "SALUS_TEST_NO_PATCH": "1",
}
PLACED = f"""{TRAINING}
from salus_job import process
print(bool(os.environ.get("LD_PRELOAD")), process.current_watch().session.figures()["lane_count"] > 0)
"""

StartJob = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def job(libsalus: None) -> Iterator[StartJob]:
    """A function that starts a job of a daemon, in one lane with others; all jobs have ended after the test."""
    started: list[TorchJob] = []

    def start(daemon: Salusd, *command: str, **environment: str) -> subprocess.Popen[str]:
        launch = ["-m", "tests.support.launch", str(daemon.control), json.dumps(SIZES), sys.executable]
        started.append(TorchJob(*launch, *command, PYTHONPATH=str(ROOT), **environment))
        return started[-1].process

    yield start
    for each in started:
        each.close()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_two_jobs_in_one_lane_of_salusd_compute_what_they_compute_alone(
    salusd: Callable[..., Salusd], job: StartJob
) -> None:
    daemon = salusd(memory="2G", cores=str(min(os.sched_getaffinity(0))), config="MaxLanes=1\nPolicy=fair")
    jobs = [job(daemon, *command) for command in (LSTM, GAN)]
    handovers = 0
    lanes: set[int] = set()

    def have_ended() -> bool:
        nonlocal handovers
        status = daemon.status()
        lanes.update(session["lane"] for session in status["sessions"] if session["lane"] is not None)
        handovers = max(handovers, sum(session["handover_count"] for session in status["sessions"]))
        return all(process.poll() is not None for process in jobs)

    wait_until(have_ended, "both jobs end", daemon.story, DEADLINE_S)
    outputs = [process.communicate() for process in jobs]
    plain = [TorchJob(*command) for command in (LSTM, GAN)]
    try:
        assert outputs == [(one.finish(), "") for one in plain]
    finally:
        for one in plain:
            one.close()
    assert len(lanes) == 1
    assert handovers >= 10


@pytest.mark.parametrize(("declared", "expected"), [(("420M", "48M"), (420, 48)), (("1M", "1M"), (400, 32))])
def test_a_declaration_raises_the_admitted_sizes_and_never_lowers_them(
    salusd: Callable[..., Salusd], job: StartJob, declared: tuple[str, str], expected: tuple[int, int]
) -> None:
    daemon = salusd(memory="1G")
    process = job(daemon, "-c", DECLARING, *declared)
    assert (_line(process), _line(process)) == ("True", "done"), process.stderr and process.stderr.read()
    (session,) = daemon.sessions().values()
    assert (session["persistent_bytes"], session["ephemeral_bytes"]) == tuple(size * MIB for size in expected)


def test_ctrl_c_ends_a_job_that_waits_for_its_turn(salusd: Callable[..., Salusd], job: StartJob) -> None:
    daemon = salusd(memory="2G", config="MaxLanes=1\nIdleRelease=1:00:00\nHangTimeout=2:00:00")
    holder = job(daemon, "-c", HOLDER)
    assert _line(holder) == "holds"
    waiter = job(daemon, "-c", HOLDER)
    daemon.wait_for(
        lambda status: [one for one in status["sessions"] if one["state"] == "waiting"], "the second job waits"
    )
    waiter.send_signal(signal.SIGINT)
    _, errors = waiter.communicate(timeout=DEADLINE_S)
    assert waiter.returncode == -signal.SIGINT, errors
    assert "KeyboardInterrupt" in errors
    assert holder.poll() is None


def test_after_a_failed_patch_the_next_job_gets_the_preload(salusd: Callable[..., Salusd], job: StartJob) -> None:
    daemon = salusd(memory="1G")
    seen = [job(daemon, "-c", PLACED, **UNPATCHED).communicate(timeout=DEADLINE_S) for _ in range(2)]
    assert seen == [("False False\n", ""), ("True True\n", "")]
    assert "hook: libc10" in daemon.story()
