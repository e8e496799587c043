"""A job whose Epilog failed is ended in the second look, if slurmctld says that it is over."""

import asyncio
import os
import signal
import subprocess
from types import SimpleNamespace

import pytest

from nodedaemon.core.errors import OperatingError
from nodedaemon.drivers.process import read_stat
from nodedaemon.drivers.slurm import JobAtStart, JobState, NodeCommands
from nodedaemon.service.jobs.orphan_jobs import JOBS_ASKED_MAX, OrphanJobs
from nodedaemon.service.journal.state import ProcessFacts


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
        self.ended, self.forgotten, self.looks, self.log = [], [], 0, []
        self.orphans = OrphanJobs(
            SimpleNamespace(commands=lambda: self.slurm),
            self,
            SimpleNamespace(job_end=self.end),
            SimpleNamespace(remove=self.forgotten.append),
            SimpleNamespace(look_at_processes=self.count_look),
            SimpleNamespace(info=self.say, warning=self.say),
        )

    def say(self, text, **fields):
        self.log.append(text)

    def count_look(self):
        self.looks += 1

    def live_sessions(self, job):
        return self.sessions.get(job, [])

    def add(self, job, *, restart=0, is_local=False, roots=()):
        self.jobs[job] = SimpleNamespace(
            job=job, restart_count=restart, is_local=is_local, is_ended=False, roots=list(roots)
        )

    async def end(self, request):
        self.ended.append(request.job)
        self.jobs.pop(request.job)

    def look(self, times=1):
        async def scenario():
            for _ in range(times):
                await self.orphans.compare()

        asyncio.run(scenario())


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
def test_a_job_without_processes_that_slurm_calls_over_is_ended_at_the_second_look(node, state):
    node.add("7")
    node.slurm.states["7"] = JobState(state)
    node.look()
    assert (node.ended, node.slurm.asked) == ([], [])
    node.look()
    assert (node.ended, node.forgotten) == (["7"], ["7"])


@pytest.mark.parametrize("state", ["RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING"])
def test_an_allocation_between_two_steps_stays(node, state):
    node.add("7")
    node.slurm.states["7"] = JobState(state)
    node.look(times=4)
    assert (node.ended, node.forgotten) == ([], [])


def test_a_requeued_job_that_runs_again_elsewhere_is_over_here(node):
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
    assert node.log == ["jobs not compared with Slurm's"]


def test_without_slurm_and_for_local_jobs_nothing_is_asked(node):
    node.add("local-1", is_local=True)
    node.look(times=3)
    node.add("7")
    node.slurm.is_installed = False
    node.look(times=3)
    assert (node.ended, node.slurm.asked) == ([], [])


def test_listed_processes_and_those_that_we_know_keep_a_job(node, process):
    node.add("7")
    node.slurm.steps = {"7": {os.getpid()}}
    node.add("8", roots=[process])
    node.add("9")
    node.sessions["9"] = [SimpleNamespace(process=process)]
    node.look(times=3)
    assert (node.ended, node.slurm.asked) == ([], [])
    # Their slurmstepd was killed: Slurm lists nobody, and the processes go on.
    assert node.log.count("job has processes but no slurmstepd") == 2


def test_a_reused_pid_keeps_no_job(node, process):
    node.add("7", roots=[ProcessFacts(process.pid, process.start_ticks + 1)])
    node.look(times=2)
    assert node.ended == ["7"]


def test_suspension_is_seen_when_all_processes_of_a_job_are_stopped(node, process):
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
    return f"{job:32}{state:32}{restart:<16}"


def test_slurms_answers_are_read_and_its_faults_are_no_answers(tmp_path):
    listing = (
        "echo 'PID JOBID STEPID LOCALID GLOBALID'; echo '12 7 batch 0 0'; echo '13 7 batch - -'; echo '-1 8 0 0 0'"
    )
    slurm = commands(
        tmp_path, scontrol=listing, squeue=f"echo '{row('8', 'RUNNING', 0)}'; echo '{row('7', 'PENDING', 3)}'"
    )
    assert asyncio.run(slurm.step_pids()) == {"7": {12, 13}}
    assert asyncio.run(slurm.job("7")) == JobState("PENDING", 3)
    slurm = commands(tmp_path, scontrol="echo PID JOBID; echo No job steps >&2; exit 1",
                     squeue="echo slurm_load_jobs error: Invalid job id specified >&2; exit 1")  # fmt: skip
    assert asyncio.run(slurm.step_pids()) == {}
    assert asyncio.run(slurm.job("7")) == JobState("")


def start_row(job, state, segment):
    return f"{row(job, state, 1)}{'physics':64}{'normal':64}{'main':64}{segment:2048}"


def test_what_a_prolog_would_report_is_read_for_our_running_jobs(tmp_path):
    segment = "salus:1;P=5;E=6"
    rows = [start_row("7", "RUNNING", f"other=1 {segment}"), start_row("8", "PENDING", segment),
            start_row("9", "RUNNING", "(null)")]  # fmt: skip
    slurm = commands(tmp_path, squeue="".join(f"echo '{one}'\n" for one in rows))
    assert asyncio.run(slurm.start("7")) == JobAtStart(1, "physics", "normal", "main", segment)
    assert asyncio.run(slurm.start("8")) is None
    assert asyncio.run(slurm.start("9")) is None
    with pytest.raises(OperatingError):
        asyncio.run(commands(tmp_path, squeue="echo Unable to contact >&2; exit 1").start("7"))


@pytest.mark.parametrize("fault", ["exit 0", "exec sleep 30", "echo Unable to contact >&2; exit 1", "echo garbage"])
def test_an_answer_that_is_none_is_a_fault(tmp_path, fault):
    slurm = commands(tmp_path, scontrol=fault, squeue=fault)
    for question in (slurm.step_pids(), slurm.job("7")):
        with pytest.raises(OperatingError):
            asyncio.run(question)


def test_a_node_without_slurm_is_told_apart(tmp_path):
    slurm = NodeCommands("node1", str(tmp_path))
    assert not slurm.is_installed
    with pytest.raises(OperatingError, match="SlurmBinDir"):
        asyncio.run(slurm.job("7"))
