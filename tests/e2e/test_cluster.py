"""The private cluster: it starts completely or not at all, runs beside another, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nodedaemon.core.errors import OperatingError, RequestError
from slurm_plugin.cluster import control
from slurm_plugin.cluster.plan import ClusterPlan
from slurm_plugin.cluster.processes import descendants, start_time


def wait_for(ready, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def test_two_clusters_run_side_by_side_and_end_without_a_trace(open_directory):
    plans = [ClusterPlan(directory=open_directory / name, with_salus=False) for name in "ab"]
    clusters = []
    try:
        clusters.extend(control.up(plan, owner_pid=os.getpid()) for plan in plans)
        pids = []
        for cluster in clusters:
            status = cluster.status()
            assert status["up"]
            assert set(status["nodes"].values()) == {"idle"}
            supervisor = cluster.state()["supervisor"][0]
            pids += [supervisor, *descendants(supervisor)]
            ran = cluster.run(["srun", "--gres=shard:1", "id", "-un"], user="games")
            assert (ran.returncode, ran.stdout) == (0, "games\n"), ran.stderr
    finally:
        for cluster in clusters:
            cluster.down()
    assert [pid for pid in pids if start_time(pid) is not None] == []
    assert not any(plan.directory.exists() for plan in plans)


def test_a_cluster_ends_with_the_process_that_owns_it(open_directory):
    plan = ClusterPlan(directory=open_directory / "c", with_salus=False, node_count=1)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as owner:
        cluster = control.up(plan, owner_pid=owner.pid)
        supervisor = cluster.state()["supervisor"][0]
        pids = [supervisor, *descendants(supervisor)]
        # A job that is still running must not survive either.
        assert cluster.run(["sbatch", "-o/dev/null", "--wrap", "sleep 600"], user="games").returncode == 0
        wait_for(lambda: cluster.run(["squeue", "-h", "-t", "R"]).stdout)
        pids = [supervisor, *descendants(supervisor)]
        owner.kill()
    wait_for(lambda: [pid for pid in pids if start_time(pid) is not None] == [])


def test_down_ends_all_parts_when_the_supervisor_was_killed(open_directory, capsys):
    cluster = control.up(ClusterPlan(directory=open_directory / "c", with_salus=False, node_count=1))
    supervisor = cluster.state()["supervisor"][0]
    pids = list(descendants(supervisor))
    os.kill(supervisor, signal.SIGKILL)
    cluster.down()
    wait_for(lambda: [pid for pid in pids if start_time(pid) is not None] == [])
    assert "had to be killed" in capsys.readouterr().err


def test_a_part_that_cannot_start_takes_the_rest_down_and_is_named(open_directory):
    plan = ClusterPlan(directory=open_directory / "c", with_salus=False, slurm_lines=("JobSubmitPlugins=nonesuch",))
    with pytest.raises(OperatingError, match="start slurmctld: the process ended"):
        control.up(plan)
    left = [
        entry.name
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and str(plan.directory).encode() in read_quietly(entry / "cmdline")
    ]
    assert left == []


def read_quietly(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_directory_with_other_files_is_never_touched(tmp_path):
    (tmp_path / "precious").write_text("mine")
    with pytest.raises(RequestError, match="files that are not ours"):
        control.prepare_directory(tmp_path)
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_directory_that_others_may_not_enter_is_refused(tmp_path):
    tmp_path.chmod(0o700)
    with pytest.raises(RequestError, match="other users cannot enter"):
        control.prepare_directory(tmp_path / "c")
