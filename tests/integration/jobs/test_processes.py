"""Which processes of a job get a session, what a job declares, and what happens to it if Salus fails."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable

import pytest

from tests.support.one_lane import OneLaneDaemon
from tests.support.torch_job import DEADLINE_S, JOB, ROOT, TorchJob, example

PROGRAM = str(ROOT / "tests" / "support" / "process_tree.py")
INFERENCE = example("inference", iterations=4, width=16)
MIB = 1 << 20
#: Holds the lane until it reads a line.
HOLDER = """
import sys, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
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

StartDaemon = Callable[..., OneLaneDaemon]
StartJob = Callable[..., TorchJob]


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("kind", ["fork", "spawn", "loader-fork", "loader-spawn"])
def test_only_trainers_get_a_session(kind: str, one_lane: StartDaemon, start_job: StartJob) -> None:
    daemon = one_lane()
    earlier = daemon.attached_sessions()
    trainers = json.loads(start_job(PROGRAM, kind, daemon=daemon).finish())
    attached = daemon.attached_sessions()
    assert sorted(attached[session] for session in attached.keys() - earlier.keys()) == sorted(trainers)


def test_a_fault_of_salus_is_reported_and_does_not_disturb_the_job(one_lane: StartDaemon, start_job: StartJob) -> None:
    daemon = one_lane()
    command = example("lstm", iterations=4, width=16)
    sabotage = "import sys, runpy, salus_job.boundary as b\n"
    sabotage += "b.BoundaryRule.backward_left = lambda self: 1 / 0\n"
    sabotage += f"sys.argv = {command!r}; runpy.run_path(sys.argv[0], run_name='__main__')"
    job, plain = start_job("-c", sabotage, daemon=daemon), start_job(*command)
    assert job.output() == plain.finish()
    assert (job.process.returncode, job.errors) == (0, "")
    fault, *_ = daemon.wait_faults(daemon.attached_session(job.process.pid))
    assert fault["is_off"]
    assert "ZeroDivisionError" in fault["what"]


def test_a_job_runs_without_salus_if_it_is_refused_or_finds_no_daemon(
    one_lane: StartDaemon, start_job: StartJob
) -> None:
    refusing = {"SALUS_SOCKET": str(one_lane(LocalJobs="no").socket), "PYTHONPATH": str(JOB)}
    refused, verbose = start_job(*INFERENCE, **refusing), start_job(*INFERENCE, **refusing, SALUS_VERBOSE="1")
    alone = start_job(*INFERENCE, SALUS_SOCKET="nowhere", PYTHONPATH=str(JOB))
    assert refused.output() == alone.output() == verbose.output() != ""
    assert (refused.errors, alone.errors) == ("", "")
    reason = f"session refused: pid {verbose.process.pid}: it belongs to no Slurm job on this node"
    assert verbose.errors == f"salus: hello: {reason}; the job continues without Salus\n"


def test_a_job_that_disables_salus_gets_no_session(one_lane: StartDaemon, start_job: StartJob) -> None:
    daemon = one_lane()
    earlier = daemon.attached_sessions()
    assert start_job(*INFERENCE, daemon=daemon, SALUS_DISABLE="1").finish()
    assert daemon.attached_sessions() == earlier


def test_a_job_can_mark_its_iterations_itself(one_lane: StartDaemon, start_job: StartJob) -> None:
    daemon = one_lane()
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
    job = start_job("-c", code, daemon=daemon)
    job.finish()
    assert daemon.iteration_count(daemon.attached_session(job.process.pid)) == 7


@pytest.mark.parametrize(("declared", "expected"), [(("420M", "48M"), (420, 48)), (("1M", "1M"), (400, 32))])
def test_a_declaration_raises_the_admitted_sizes_and_never_lowers_them(
    one_lane: StartDaemon, start_job: StartJob, declared: tuple[str, str], expected: tuple[int, int]
) -> None:
    daemon = one_lane()
    process = start_job("-c", DECLARING, *declared, daemon=daemon).process
    assert (_line(process), _line(process)) == ("True", "done"), process.stderr and process.stderr.read()
    session = daemon.session(process.pid)
    assert (session["persistent_bytes"], session["ephemeral_bytes"]) == tuple(size * MIB for size in expected)


def test_ctrl_c_ends_a_job_that_waits_for_its_turn(one_lane: StartDaemon, start_job: StartJob) -> None:
    daemon = one_lane()
    holder = start_job("-c", HOLDER, daemon=daemon).process
    assert _line(holder) == "holds"
    waiter = start_job("-c", HOLDER, daemon=daemon).process
    daemon.wait_state(waiter.pid, "waiting")
    waiter.send_signal(signal.SIGINT)
    _, errors = waiter.communicate(timeout=DEADLINE_S)
    assert waiter.returncode == -signal.SIGINT, errors
    assert "KeyboardInterrupt" in errors
    assert holder.poll() is None
