"""Jobs on real Slurm, from start to end in salusd: none is lost or counted twice, and no fault drains a node."""

import asyncio
import signal
import time

import pytest

from nodedaemon.core.types import MIB
from nodedaemon.drivers.slurm import NodeCommands
from tests.support.lab import wait_for

# Each module has its own text: a script with the same text has the same profile.
SLEEP = "exec sleep 301"
MEMORY = "--salus-mem=150M,50M"


def start(lab, *argv, user="games"):
    job = lab.sbatch("--gres=salus:1", MEMORY, *argv, "--wrap", SLEEP, user=user)
    lab.wait_state(job, "RUNNING")
    wait_for(lambda: lab.sessions(job), f"salusd to know job {job}")
    return job


def wait_released(lab, job):
    wait_for(lambda: not lab.sessions(job), lambda: f"the release of job {job}: {lab.sessions(job)}", 45)


def nodes_are_up(lab):
    return not any(word in lab.ask("sinfo", "-h", "-N", "-o", "%T") for word in ("drain", "down", "fail"))


def test_a_job_is_known_to_its_daemon_from_prolog_to_epilog(lab):
    job = start(lab)
    (session,) = lab.sessions(job)
    node, index = lab.device(job)
    device = next(row for row in lab.node_status(node)["devices"] if row["device"] == session["device"])
    assert (session["node"], str(device["index"])) == (node, index)
    assert (session["persistent_bytes"], session["ephemeral_bytes"]) == (150 * MIB, 50 * MIB)
    assert (lab.cluster.plan.path("run", node, "jobs", job)).exists()
    lab.run("scancel", job)
    wait_released(lab, job)
    wait_for(lambda: not lab.cluster.plan.path("run", node, "jobs", job).exists(), "the job's file to be removed")


def test_a_task_gets_its_environment_and_the_users_own_paths_stay(lab):
    output = lab.work / "environment.txt"
    # Do not use --export=NAME=value: 26.05 then logs the user in, and these accounts have no shell.
    job = lab.sbatch("--gres=salus:1", MEMORY, "--wrap", "env", output=str(output), PYTHONPATH="/mine")
    lab.wait_state(job, "COMPLETED")
    environment = dict(line.partition("=")[::2] for line in output.read_text().splitlines())
    assert environment["SALUS_SOCKET"].endswith("salusd.sock")
    assert environment["PYTHONPATH"].endswith(":/mine")
    assert environment["CUDA_VISIBLE_DEVICES"] in ("0", "1")
    plain = lab.sbatch("--wrap", "env", output=str(output))
    lab.wait_state(plain, "COMPLETED")
    assert "SALUS_SOCKET" not in output.read_text()


def requeue(lab, job):
    """Requeue a job and let it start again sooner than Slurm would."""
    lab.ask("scontrol", "requeue", job)
    wait_released(lab, job)
    lab.wait_state(job, "PENDING")
    wait_for(lambda: "COMPLETING" not in lab.ask("squeue", "-h", "-o", "%T", "-j", job), "the earlier run to end")
    lab.ask("scontrol", "update", f"jobid={job}", "starttime=now+3")
    lab.wait_state(job, "RUNNING", seconds=60)


def test_requeue_ends_the_earlier_run_and_counts_once(lab):
    job = start(lab)
    requeue(lab, job)
    wait_for(lambda: len(lab.sessions(job)) == 1, "one session")
    assert lab.charge(job) == {"salus": 1, "shard": 10}


def test_a_job_that_starts_again_without_a_prolog_is_found(lab):
    """slurmd sometimes skips the Prolog of a job that it remembers; here the Prolog always does nothing."""
    job = start(lab)
    script = lab.cluster.plan.path("etc", "prolog")
    text = script.read_text()
    script.write_text("#!/bin/sh\n")
    try:
        requeue(lab, job)
        wait_for(lambda: len(lab.sessions(job)) == 1, lambda: f"its second run: {lab.daemon_log(lab.device(job)[0])}")
        assert lab.charge(job) == {"salus": 1, "shard": 10}
        # salusd would end a job without a file when it looks for orphans the second time.
        assert (lab.cluster.plan.path("run", lab.device(job)[0], "jobs") / job).is_file()
        lab.run("scancel", job)
        wait_released(lab, job)
    finally:
        script.write_text(text)


def test_suspend_and_resume_keep_the_charge(lab):
    job = start(lab)
    lab.ask("scontrol", "suspend", job)
    lab.wait_state(job, "SUSPENDED")
    assert lab.sessions(job)
    lab.ask("scontrol", "resume", job)
    lab.wait_state(job, "RUNNING")
    assert len(lab.sessions(job)) == 1


def test_slurm_extends_a_time_limit_by_the_minutes_that_salusd_asks_for(lab, monkeypatch):
    """The last step of ExtendTime, on real Slurm. tests/unit/service covers how the minutes are counted."""
    plan = lab.cluster.plan
    for name, value in plan.environment().items():
        monkeypatch.setenv(name, value)
    job = start(lab, "--time=5")
    if plan.root is None:
        asyncio.run(NodeCommands(lab.device(job)[0]).extend_limit(job, 2))
    else:
        # The other release runs in another root, so run the same command there.
        lab.ask("scontrol", "update", f"jobid={job}", "timelimit=+2")
    assert lab.field(job, "TimeLimit") == "00:07:00"


def test_a_killed_slurmstepd_is_cleaned_up_by_the_epilog(lab):
    job = start(lab)
    lab.kill_slurmstepd(job)
    lab.run("scancel", job)
    wait_released(lab, job)
    assert nodes_are_up(lab), lab.ask("sinfo", "-R")


def test_a_node_that_goes_down_releases_its_jobs_and_comes_back(lab):
    job = start(lab, "--no-requeue")
    node = lab.device(job)[0]
    lab.ask("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    wait_released(lab, job)
    # ReturnToService=2 may have brought it back already.
    lab.run("scontrol", "update", f"nodename={node}", "state=resume")
    wait_for(lambda: nodes_are_up(lab), "the node to be back")


@pytest.fixture
def no_epilog(lab):
    """An Epilog that does nothing, as if it had been killed or could not reach salusd."""
    script = lab.cluster.plan.path("etc", "epilog")
    usual = script.read_text()

    def write(text):
        # Rename a complete file: an Epilog that starts now must not read half of it.
        script.with_suffix(".new").write_text(text)
        script.with_suffix(".new").chmod(0o755)
        script.with_suffix(".new").rename(script)

    write("#!/bin/sh\nexit 0\n")
    yield
    write(usual)


def test_salusd_releases_jobs_whose_epilog_never_ran_and_keeps_live_jobs(lab, no_epilog):
    lives, ends, again = start(lab), start(lab), start(lab)
    # An allocation without a step has no process, but it is live.
    lab.ask("salloc", "--gres=salus:1", MEMORY, "--no-shell", "--job-name=idle", user="games")
    idle = lab.ask("squeue", "-h", "-n", "idle", "-o", "%A").strip()
    lab.run("scancel", ends)
    lab.ask("scontrol", "requeuehold", again)
    for job in (ends, again):
        wait_released(lab, job)
        assert not any(lab.cluster.plan.path("run", node, "jobs", job).exists() for node in lab.cluster.plan.nodes)
    for job in (lives, idle):
        assert (lab.state(job), len(lab.sessions(job))) == ("RUNNING", 1)


@pytest.mark.parametrize(
    ("how", "is_together"), [(signal.SIGTERM, False), (signal.SIGKILL, True)], ids=["one by one", "together"]
)
def test_all_daemons_restart_with_jobs_running_and_none_is_lost_or_counted_twice(lab, how, is_together):
    jobs = [start(lab) for _ in range(3)]
    before = {job: lab.device(job) for job in jobs}
    # A killed slurmctld restores what it had saved; it saves its state every few seconds.
    saved, now = lab.cluster.plan.path("state", "job_state"), time.time()
    lab.ask("scontrol", "update", f"jobid={jobs[-1]}", "comment=saved")
    lab.ask("scontrol", "update", "nodename=node1", "comment=saved")
    wait_for(lambda: saved.stat().st_mtime > now, "slurmctld to save its state")
    wait_for(saved.with_name("node_state").exists, "slurmctld to save its nodes")
    for parts in [lab.PARTS] if is_together else [[name] for name in lab.PARTS]:
        for name in parts:
            lab.cluster.stop(name, how)
        for name in parts:
            lab.cluster.start(name)
    wait_for(lambda: "unk" not in lab.ask("sinfo", "-h", "-N", "-o", "%T"), "the nodes")
    for job in jobs:
        assert lab.state(job) == "RUNNING"
        assert lab.device(job) == before[job]
        wait_for(lambda job=job: len(lab.sessions(job)) == 1, lambda job=job: f"{job}: {lab.sessions(job)}")

    def held():
        return [
            row["persistent_bytes"] // MIB for node in ("node1", "node2") for row in lab.node_status(node)["devices"]
        ]

    # Until a job has reported its memory again, salusd may count more for it, never less.
    assert sum(held()) >= 3 * 150
    wait_for(lambda: sum(held()) == 3 * 150, lambda: f"three jobs of 150 MiB: {held()}, {lab.sessions()}")
    lab.run("scancel", *jobs)
    for job in jobs:
        wait_released(lab, job)
    assert nodes_are_up(lab), lab.ask("sinfo", "-R")


def test_jobs_that_start_or_end_while_salusd_is_down_are_counted_correctly_afterwards(lab):
    ends = start(lab)
    node = lab.device(ends)[0]
    lab.cluster.stop(f"salusd.{node}")
    try:
        starts = lab.sbatch("--gres=salus:1", MEMORY, f"--nodelist={node}", "--wrap", SLEEP)
        lab.wait_state(starts, "RUNNING")
        lab.run("scancel", ends)
        lab.wait_state(ends, "CANCELLED")
        wait_for(lambda: not lab.cluster.plan.path("run", node, "jobs", ends).exists(), "the Epilog")
    finally:
        lab.cluster.start(f"salusd.{node}")
    wait_for(lambda: len(lab.sessions(starts)) == 1, lambda: f"{starts}: {lab.sessions()}")
    wait_released(lab, ends)
    assert nodes_are_up(lab), lab.ask("sinfo", "-R")


def test_on_daemon_loss_refuse_fails_the_task_with_a_message_and_drains_no_node(lab):
    plugstack = lab.cluster.plan.path("etc", "plugstack.conf")
    usual = plugstack.read_text()
    output = lab.work / "refused.txt"
    for part in ("salusd.node1", "salusd.node2"):
        lab.cluster.stop(part)
    plugstack.write_text(usual.rstrip() + " on_loss=refuse\n")
    try:
        job = lab.sbatch("--gres=salus:1", MEMORY, "--wrap", "true", output=str(output))
        lab.wait_state(job, "FAILED")
        lab.wait_state(lab.sbatch("--wrap", "true"), "COMPLETED")
        assert "does not answer" in output.read_text()
        assert nodes_are_up(lab), lab.ask("sinfo", "-R")
    finally:
        plugstack.write_text(usual)
        for part in ("salusd.node1", "salusd.node2"):
            lab.cluster.start(part)


def test_several_nodes_and_several_tasks_are_charged_on_each_node(lab):
    job = lab.sbatch("-N2", "--ntasks-per-node=2", "--gres=salus:1", MEMORY, "--wrap", "srun sleep 300")
    lab.wait_state(job, "RUNNING")
    wait_for(lambda: len(lab.sessions(job)) == 2, lambda: f"{lab.sessions(job)}")
    assert {row["node"] for row in lab.sessions(job)} == {"node1", "node2"}
    overlap = lab.run("srun", f"--jobid={job}", "--overlap", "-n1", "-N1", "printenv", "SALUS_SOCKET", user="games")
    assert overlap.stdout.strip().endswith("salusd.sock"), overlap.stderr
    lab.run("scancel", job)
    wait_released(lab, job)
