"""A job whose Epilog failed is ended at the second look, if slurmctld says that it is over."""

import asyncio
import os
import signal
import subprocess
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from nodedaemon.core.errors import OperatingError
from nodedaemon.drivers.process import read_stat
from nodedaemon.drivers.slurm import JobState, NodeCommands
from nodedaemon.service.jobs.orphan_jobs import JOBS_ASKED_MAX, OrphanJobs
from nodedaemon.service.journal.state import ProcessFacts
from nodedaemon.wire.control import JobAtStart
from tests.support.squeue import squeue_script


class FakeSlurm:
    """A node's Slurm: steps and their processes, jobs and their states, and its faults."""

    def __init__(self):
        self.steps, self.states, self.asked = {}, {}, []
        self.is_installed, self.fault = True, None

    async def step_pids(self):
        if self.fault:
            raise OperatingError(self.fault)
        return self.steps

    async def job(self, job):
        self.asked.append(job)
        if isinstance(self.states.get(job), str):
            raise OperatingError(self.states[job])
        return self.states.get(job, JobState(""))


class Node:
    def __init__(self):
        self.slurm, self.jobs, self.sessions = FakeSlurm(), {}, {}
        self.ended, self.looks, self.log = [], 0, []
        self.orphans = OrphanJobs(
            SimpleNamespace(slurm=SimpleNamespace(commands=lambda: self.slurm), dispatcher=SimpleNamespace(state=self)),
            SimpleNamespace(end_without_epilog=self.end),
            SimpleNamespace(look_at_processes=self.count_look),
        )

    def count_look(self):
        self.looks += 1

    def live_sessions(self, job):
        return self.sessions.get(job, [])

    def add(self, job, *, restart=0, is_local=False, roots=()):
        self.jobs[job] = SimpleNamespace(
            job=job, restart_count=restart, is_local=is_local, is_ended=False, roots=list(roots)
        )

    async def end(self, job):
        self.ended.append(job)
        self.jobs.pop(job)

    def look(self, times=1):
        async def scenario():
            for _ in range(times):
                await self.orphans.compare()

        with capture_logs() as logged:
            asyncio.run(scenario())
        self.log += [line["event"] for line in logged]


@pytest.fixture
def node():
    return Node()


@pytest.fixture
def process():
    child = subprocess.Popen(["/bin/sleep", "60"])
    yield ProcessFacts(child.pid, read_stat(child.pid).start_ticks)
    child.kill()
    child.wait()


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PENDING", ""])
def test_a_job_without_processes_that_slurm_considers_over_is_ended_at_the_second_look(node, state):
    node.add("7")
    node.slurm.states["7"] = JobState(state)
    node.look()
    assert (node.ended, node.slurm.asked) == ([], [])
    node.look()
    assert node.ended == ["7"]


@pytest.mark.parametrize("state", ["RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING"])
def test_an_allocation_between_two_steps_is_kept(node, state):
    node.add("7")
    node.slurm.states["7"] = JobState(state)
    node.look(times=4)
    assert node.ended == []


def test_a_requeued_job_that_runs_on_another_node_is_ended_here(node):
    node.add("7", restart=1)
    node.slurm.states["7"] = JobState("RUNNING", 2)
    node.look(times=2)
    assert node.ended == ["7"]


def test_a_job_that_was_restarted_between_two_looks_is_a_new_suspect(node):
    node.add("7")
    node.look()
    node.add("7", restart=1)
    node.look()
    assert node.slurm.asked == []


@pytest.mark.parametrize("fault", ["steps", "state"])
def test_a_slurm_that_is_down_or_hung_ends_no_job_and_is_logged_once(node, fault):
    node.add("7")
    if fault == "steps":
        node.slurm.fault = "scontrol: no answer in 10 s"
    else:
        node.slurm.states["7"] = "squeue: no answer in 10 s"
    node.look(times=5)
    assert node.ended == []
    assert node.log == ["jobs not compared with Slurm"]


def test_slurm_is_not_asked_about_local_jobs_or_if_it_is_not_installed(node):
    node.add("local-1", is_local=True)
    node.look(times=3)
    node.add("7")
    node.slurm.is_installed = False
    node.look(times=3)
    assert (node.ended, node.slurm.asked) == ([], [])


def test_a_job_with_listed_registered_or_attached_processes_is_kept(node, process):
    node.add("7")
    node.slurm.steps = {"7": {os.getpid()}}
    node.add("8", roots=[process])
    node.add("9")
    node.sessions["9"] = [SimpleNamespace(process=process)]
    node.look(times=3)
    assert (node.ended, node.slurm.asked) == ([], [])
    # Their slurmstepd was killed: Slurm lists no process, and the processes continue.
    assert node.log.count("job has processes but no slurmstepd") == 2


def test_a_reused_pid_does_not_keep_a_job(node, process):
    node.add("7", roots=[ProcessFacts(process.pid, process.start_ticks + 1)])
    node.look(times=2)
    assert node.ended == ["7"]


def test_a_job_is_suspended_when_all_its_processes_are_stopped(node, process):
    node.add("7")
    node.slurm.steps = {"7": {process.pid}}
    node.look()
    assert node.looks == 0
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    node.look(times=2)
    assert (node.log, node.looks) == (["job suspended"], 1)
    os.kill(process.pid, signal.SIGCONT)
    os.waitpid(process.pid, os.WCONTINUED)
    node.look(times=2)
    assert (node.log, node.looks, node.ended) == (["job suspended", "job resumed"], 2, [])


def test_many_idle_allocations_do_not_hide_one_that_is_over(node):
    for number in range(3 * JOBS_ASKED_MAX):
        node.add(str(number))
        node.slurm.states[str(number)] = JobState("RUNNING")
    node.slurm.states[str(3 * JOBS_ASKED_MAX - 1)] = JobState("COMPLETED")
    node.look(times=2)
    assert len(node.slurm.asked) == JOBS_ASKED_MAX
    node.look(times=2)
    assert node.ended == [str(3 * JOBS_ASKED_MAX - 1)]


def commands(tmp_path, **programs):
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    return NodeCommands("node1", str(tmp_path), timeout_s=0.5)


def row(job, state, restart):
    return [f"{job:32}", f"{state:32}", f"{restart:<16}"]


def test_steps_and_states_are_read_and_an_unknown_job_has_no_state(tmp_path):
    listing = (
        "echo 'PID JOBID STEPID LOCALID GLOBALID'; echo '12 7 batch 0 0'; echo '13 7 batch - -'; echo '-1 8 0 0 0'"
    )
    slurm = commands(tmp_path, scontrol=listing, squeue=squeue_script(row("8", "RUNNING", 0), row("7", "PENDING", 3)))
    assert asyncio.run(slurm.step_pids()) == {"7": {12, 13}}
    assert asyncio.run(slurm.job("7")) == JobState("PENDING", 3)
    slurm = commands(tmp_path, scontrol="echo PID JOBID; echo No job steps >&2; exit 1",
                     squeue="echo slurm_load_jobs error: Invalid job id specified >&2; exit 1")  # fmt: skip
    assert asyncio.run(slurm.step_pids()) == {}
    assert asyncio.run(slurm.job("7")) == JobState("")


def start_row(job, state, segment, tres="gres:salus:1,gres:shard:3", account="physics"):
    return [*row(job, state, 1), "1000", f"{tres:512}", account, "normal", "main", f"{segment:2048}"]


def test_the_start_of_a_running_job_of_salus_is_read_from_slurm(tmp_path):
    segment = "salus:1;P=5;E=6"
    rows = [
        start_row("7", "RUNNING", f"other=1 {segment}"),
        start_row("8", "PENDING", segment),
        start_row("9", "RUNNING", "(null)"),
        start_row("10", "RUNNING", segment, "N/A"),
        start_row("11", "RUNNING", segment, "gres:salusx:1"),
        start_row("12", "RUNNING", segment, "gres/gpu:1,gres/salus:1"),
    ]
    slurm = commands(tmp_path, squeue=squeue_script(*rows))
    seen = JobAtStart(uid=1000, restart=1, account="physics", qos="normal", partition="main", segment=segment)
    found = {job: asyncio.run(slurm.start(job)) for job in ("7", "8", "9", "10", "11", "12")}
    assert found == {"7": seen, "8": None, "9": None, "10": None, "11": None, "12": seen}
    unknown = commands(tmp_path, squeue="echo slurm_load_jobs error: Invalid job id specified >&2; exit 1")
    assert asyncio.run(unknown.start("7")) is None
    for fault in ("echo Unable to contact >&2; exit 1", "exit 0"):
        with pytest.raises(OperatingError):
            asyncio.run(commands(tmp_path, squeue=fault).start("7"))


def test_the_name_of_an_account_cannot_pass_for_another_row(tmp_path):
    segment = "salus:1;P=5;E=6"
    forged = "a\n" + "".join([*row("8", "RUNNING", 0), f"{'0':16}", "gres:salus:1"])
    slurm = commands(tmp_path, squeue=squeue_script(start_row("7", "RUNNING", segment, account=forged)))
    assert asyncio.run(slurm.start("7")).account == forged
    cut_off = commands(tmp_path, squeue=squeue_script(row("7", "RUNNING", 0)[:2]))
    with pytest.raises(OperatingError):
        asyncio.run(cut_off.job("7"))


@pytest.mark.parametrize("fault", ["exit 0", "exec sleep 30", "echo Unable to contact >&2; exit 1", "echo garbage"])
def test_an_empty_late_or_unreadable_answer_is_an_error(tmp_path, fault):
    slurm = commands(tmp_path, scontrol=fault, squeue=fault)
    for question in (slurm.step_pids(), slurm.job("7")):
        with pytest.raises(OperatingError):
            asyncio.run(question)


def test_a_node_without_slurm_is_recognised(tmp_path):
    slurm = NodeCommands("node1", str(tmp_path))
    assert not slurm.is_installed
    with pytest.raises(OperatingError, match="SlurmBinDir"):
        asyncio.run(slurm.job("7"))
