"""A process's job: cgroup first, then registered processes and their descendants, then Slurm's pid list."""

import pytest

from nodedaemon.core.types import JobId
from nodedaemon.drivers.cgroup import JobPlace
from nodedaemon.service.jobs.identity import ancestors, find_job
from nodedaemon.service.journal.state import JobFacts, ProcessFacts


@pytest.fixture
def proc(tmp_path):
    def add(pid, parent, start, cgroup="0::/\n"):
        place = tmp_path / str(pid)
        place.mkdir(exist_ok=True)
        fields = ["S", str(parent), *["0"] * 17, str(start), "0", "0"]
        (place / "stat").write_text(f"{pid} (x) {' '.join(fields)}\n")
        (place / "cgroup").write_text(cgroup)

    add.root = tmp_path
    return add


def job(name, **fields):
    return JobFacts(JobId(name), 0, 1000, **fields)


def no_list():
    raise AssertionError("scontrol is asked last")


def test_the_cgroup_comes_before_registered_processes_and_the_pid_list(proc):
    proc(50, 1, 7, "0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0\n")
    jobs = {JobId("12"): job("12"), JobId("13"): job("13", roots=[ProcessFacts(50, 7)])}
    assert find_job(50, jobs, no_list, proc.root).job is jobs[JobId("12")]


def test_a_sluid_names_the_job_that_the_prolog_announced(proc):
    proc(50, 1, 7, "0::/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0\n")
    jobs = {JobId("12"): job("12", sluid="s5K1KKYAYG5D00")}
    assert find_job(50, jobs, no_list, proc.root).job is jobs[JobId("12")]


def test_a_descendant_of_a_registered_process_belongs_to_the_job_and_a_reused_pid_does_not(proc):
    proc(40, 1, 100)
    proc(41, 40, 110)
    proc(42, 41, 120)
    jobs = {JobId("local-1"): job("local-1", is_local=True, roots=[ProcessFacts(40, 100)])}
    assert find_job(42, jobs, no_list, proc.root).job is jobs[JobId("local-1")]
    proc(40, 1, 999)
    assert find_job(42, jobs, dict, proc.root).job is None


def test_slurms_pid_list_is_used_without_cgroups(proc):
    proc(60, 1, 7)
    proc(61, 60, 8)
    jobs = {JobId("77"): job("77")}
    assert find_job(61, jobs, lambda: {60: JobPlace("77", None, "0")}, proc.root).job is jobs[JobId("77")]
    assert find_job(61, jobs, dict, proc.root).job is None
    unknown = find_job(61, {}, lambda: {60: JobPlace("77", None, "0")}, proc.root)
    assert (unknown.job, unknown.place) == (None, JobPlace("77", None, "0"))


def test_no_process_belongs_to_an_ended_job(proc):
    proc(40, 1, 100)
    jobs = {JobId("1"): job("1", is_local=True, is_ended=True, roots=[ProcessFacts(40, 100)])}
    assert find_job(40, jobs, dict, proc.root).job is None


def test_the_search_for_ancestors_ends_in_a_loop_of_parents(proc):
    proc(10, 11, 1)
    proc(11, 10, 1)
    assert len(ancestors(10, proc.root)) == 64
