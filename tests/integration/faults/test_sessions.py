"""Sessions that die, stop, hang or fork, jobs with several sessions, and reused pids."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.faults.running import finish, start_running, wait_for_more
from tests.support.device_kind import worker_environment
from tests.support.salusd import wait_until
from tests.support.workers import overlaps


@pytest.mark.parametrize("kill_count", [5, pytest.param(1000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_a_holder_that_is_killed_frees_the_lane_and_the_next_waiter_runs(kill_count, salusd, crew):
    daemon = salusd(config="MaxLanes=1")
    group = crew(daemon)
    peer = start_running(group, 2, iteration_us=300)
    for _ in range(kill_count):
        victim = start_running(group, 3, iteration_us=300)
        victim.close()
        died_ns = time.monotonic_ns()
        # Count by time: the last iteration that the peer reported may be much older than the death.
        wait_until(
            lambda died_ns=died_ns: peer.count_since(died_ns) >= 5,
            "the next waiter runs",
            lambda: daemon.log_tail()[-2000:],
        )
        assert overlaps([peer, victim]) == 0
        peer.forget_iterations()
    daemon.wait_for(lambda status: len(status["sessions"]) == 1, "the dead sessions are released")
    assert daemon.status()["devices"][0]["persistent_bytes"] == 4 << 20


def test_a_stopped_holder_keeps_its_lane_and_its_peers_move_to_another(salusd, crew):
    daemon = salusd(memory="64M", config="MaxLanes=2\nPolicy=fifo")
    group = crew(daemon)
    # Both fit into one lane. The peer must find room for a second lane beside that of the stopped holder.
    holder = group.start(iteration_us=300, ephemeral=8)
    peer = group.start(iteration_us=300, ephemeral=8)
    group.ready()
    holder.go()
    holder.wait_iterations(5)
    holder.signal(signal.SIGSTOP)
    peer.go()
    peer.wait_iterations(10)
    holder.signal(signal.SIGCONT)
    wait_for_more(holder, 5)
    finish(holder, peer)


def test_the_peers_of_a_stopped_holder_wait_if_no_other_lane_fits(salusd, crew):
    daemon = salusd(memory="64M", config="MaxLanes=1")
    group = crew(daemon)
    holder, peer = (group.start(iteration_us=300, persistent=4, ephemeral=40) for _ in range(2))
    group.ready()
    holder.go()
    holder.wait_iterations(5)
    holder.signal(signal.SIGSTOP)
    peer.go()
    daemon.wait_for(
        lambda status: any(s["is_stopped"] for s in status["sessions"]) and status["devices"][0]["waiting_count"] == 1,
        "the daemon sees that the holder is stopped and the peer waits",
    )
    reasons = daemon.ask("why", job=peer.job)["sessions"][0]["reasons"]
    assert reasons
    assert peer.iterations() == []
    holder.signal(signal.SIGCONT)
    peer.wait_iterations(5)
    finish(holder, peer)
    assert overlaps([holder, peer]) == 0


@pytest.mark.parametrize("action", ["warn", "kill"])
def test_a_hung_holder_is_warned_or_ended_as_configured(action, salusd, crew):
    daemon = salusd(memory="64M", config=f"MaxLanes=1\nHangTimeout=1\nOnHang={action}")
    group = crew(daemon)
    # With `warn` the iteration ends after three times HangTimeout.
    iteration_us = 60_000_000 if action == "kill" else 3_000_000
    holder = group.start(iteration_us=iteration_us, persistent=4, ephemeral=40, report_starts=True)
    peer = group.start(iteration_us=300, persistent=4, ephemeral=40)
    group.ready()
    holder.go()
    # A holder that has not begun its iteration yet is idle, and the daemon takes the grant of an idle holder back.
    holder.wait_report("inside")
    peer.go()
    wait_until(lambda: "hung" in daemon.log_tail(), "the hang is reported", daemon.log_tail)
    if action == "kill":
        assert holder.process.wait(60) == -signal.SIGKILL
    else:
        holder.wait_iterations(1)
    peer.wait_iterations(5)
    assert overlaps([holder, peer]) == 0


def test_a_grandchild_belongs_to_the_job_and_outlives_its_parent(salusd):
    daemon = salusd()
    program = (
        "import subprocess,sys,os\n"
        "from tests.support.worker import start_run\n"
        f"print(start_run({str(daemon.control)!r},{{'persistent_bytes':1<<22,'ephemeral_bytes':1<<22,'wait_ms':9000}})['job'])\n"
        "sys.stdout.flush()\n"
        "command=[sys.executable,'tests/support/worker.py','--no-run','--control','x','--socket',"
        f"{str(daemon.socket)!r}]\n"
        "child=subprocess.Popen(['sh','-c','exec 3<&0; \"$@\" <&3 & wait','sh',*command],stdin=0)\n"
        "child.wait()\n"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=".",
        env={**os.environ, "PYTHONPATH": "."}, start_new_session=True,
    )  # fmt: skip
    try:
        job = launcher.stdout.readline().strip()
        session = daemon.wait_for(
            lambda status: next((s for s in status["sessions"] if s["is_connected"]), None), "the grandchild attaches"
        )
        assert session["job"] == job
        assert session["pid"] != launcher.pid
        launcher.kill()
        launcher.wait()
        assert daemon.sessions()[job]["is_connected"]
    finally:
        os.killpg(launcher.pid, signal.SIGKILL)
        launcher.wait()
        launcher.stdin.close()
        launcher.stdout.close()
    daemon.wait_for(lambda status: not status["sessions"], "the job ends with its last process")


@pytest.mark.parametrize("is_idle", [False, True], ids=["running", "idle"])
def test_two_sessions_of_one_job_run_ungated_by_their_peak_and_get_a_notice(salusd, crew, is_idle):
    daemon = salusd(config="MaxLanes=1")
    group = crew(daemon)
    first = group.start(iteration_us=300)
    group.ready()
    if not is_idle:
        first.go()
        first.wait_iterations(3)
    program = (
        "import sys,runpy\n"
        "sys.argv=['worker','--no-run','--control','x','--socket',sys.argv[1],'--iteration-us','300']\n"
        "runpy.run_path('tests/support/worker.py',run_name='__main__')"
    )
    # Register the second process with the same job, as Slurm's hooks do for a second rank.
    second = subprocess.Popen(
        [sys.executable, "-c", f"import sys;sys.stdin.readline()\n{program}", str(daemon.socket)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **worker_environment(daemon.gpu)},
    )  # fmt: skip
    try:
        daemon.hook("task_start", job=first.job, uid=os.getuid(), pid=second.pid, step="0", task="1")
        second.stdin.write("\ngo\n")
        second.stdin.flush()
        assert "says hello" in second.stdout.readline()
        assert '"code": 0' in second.stdout.readline()
        for _ in range(20):
            assert "iteration" in second.stdout.readline()
        if is_idle:
            first.go()
        wait_for_more(first)
        sessions = daemon.status()["sessions"]
        assert [session["is_gated"] for session in sessions] == [False, False]
        assert "several sessions" in daemon.log_tail()
        # Each process holds more than the 4 MiB that the job declared, and is charged for what it holds.
        daemon.wait_for(
            lambda status: (
                sum(one["persistent_bytes"] for one in status["sessions"])
                >= sum(one["own_bytes"] or 1 << 40 for one in status["sessions"])
            ),
            "the second session is charged too",
        )
    finally:
        second.kill()
        second.communicate()
    finish(first)
    daemon.wait_for(lambda status: not status["sessions"], "both sessions are gone")
    daemon.stop_written()
    with sqlite3.connect(daemon.database) as database:
        kinds = [row[0] for row in database.execute("select kind from events")]
    assert "ungated" in kinds


def uptime_s():
    return float(Path("/proc/uptime").read_text().split()[0])


def start_with_pid(group, pid):
    """Start a worker that gets the pid of a process that is gone, as normally happens after 32,768 others."""
    for _ in range(200):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        worker = group.start(no_run=True)
        if worker.pid == pid:
            return worker
        worker.close()
    raise AssertionError(f"no worker got pid {pid} again")


def test_a_process_that_reuses_a_registered_pid_does_not_belong_to_the_job(salusd, crew):
    """The daemon identifies a process by pid and start time, so a reused pid gives no access to the job."""
    daemon = salusd(config="LocalJobs=no")
    daemon.hook(
        "job_start", job="77", uid=os.getuid(), gpus="0", segment="salus:1;P=4194304;E=4194304;K=shared", wait_ms=5000
    )
    registered = subprocess.Popen(["sleep", "1000"])
    assert daemon.hook("task_start", job="77", uid=os.getuid(), pid=registered.pid)["ok"]
    registered.kill()
    registered.wait()
    # The kernel reports start times in hundredths of a second; outside this test no pid is reused so soon.
    gone_s = uptime_s()
    wait_until(lambda: uptime_s() > gone_s + 0.02, "the clock of start times advances")
    stranger = start_with_pid(crew(daemon), registered.pid)
    assert stranger.wait_report("hello")["code"] != 0
    assert [session["pid"] for session in daemon.status()["sessions"]] == [0]
    assert daemon.hook("job_end", job="77", uid=os.getuid())["ok"]
