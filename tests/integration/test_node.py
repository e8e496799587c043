"""A whole node: several devices, pinned cores, idle holders, and the commands that show and change its state."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.salusd import ROOT
from tests.support.squeue import squeue_script
from tests.support.workers import overlaps


def salus(daemon, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "cli.main", "-f", str(daemon.config), *arguments],
        capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SLURMD_NODENAME": daemon.node, "COLUMNS": "80"},
    )  # fmt: skip


def test_sessions_spread_over_devices_and_are_pinned_to_their_cores(salusd, crew):
    core = min(os.sched_getaffinity(0))
    daemon = salusd(
        devices=f"DeviceName=a Type=host Memory=128M Cores={core}\nDeviceName=b Type=host Memory=128M Policy=fifo"
    )
    group = crew(daemon)
    workers = [group.start(iteration_us=300)]
    group.ready()
    workers.append(group.start(iteration_us=300))
    group.ready()
    sessions = daemon.sessions()
    assert len({sessions[worker.job]["device"] for worker in workers}) == 2
    assert os.sched_getaffinity(workers[0].pid) == {core}
    assert [device["policy"] for device in daemon.status()["devices"]] == ["fair", "fifo"]
    assert daemon.ask("policy_set", policy="pack", device="b")["ok"]
    assert [device["policy"] for device in daemon.status()["devices"]] == ["fair", "pack"]
    for worker in workers:
        worker.go()
        worker.wait_iterations(5)
        worker.stop()
        worker.finish()


@pytest.fixture
def holder_and_peer(salusd, crew):
    """A function that starts a job with these options, which takes the only lane, and one that will wait for it."""

    def start(**options):
        # fifo would let the first job keep the lane; only an idle one gives it up.
        daemon = salusd(config="MaxLanes=1\nIdleRelease=50ms\nPolicy=fifo")
        group = crew(daemon)
        holder, peer = group.start(**options), group.start(iteration_us=300)
        group.ready()
        holder.go()
        return daemon, holder, peer

    return start


def test_an_idle_holder_gives_its_lane_to_a_waiting_job_and_asks_again(holder_and_peer):
    # It looks idle: a long pause outside every entry point, like a notebook between two cells.
    daemon, idle, peer = holder_and_peer(iteration_us=1_500_000, iterations=2, outside=True)
    daemon.wait_for(lambda status: any(s["state"] == "running" for s in status["sessions"]), "it holds the lane")
    peer.go()
    peer.wait_iterations(50)
    assert len(idle.iterations()) < 2
    idle.finish()
    peer.stop()
    peer.finish()
    assert overlaps([idle, peer]) > 0


def test_a_holder_inside_an_entry_point_keeps_its_lane_for_ten_times_idle_release(holder_and_peer):
    _, busy, peer = holder_and_peer(iteration_us=500_000, iterations=1, report_starts=True)
    busy.wait_report("inside")
    peer.go()
    busy.finish()
    peer.wait_iterations(50)
    peer.stop()
    peer.finish()
    assert len(busy.iterations()) == 1
    assert overlaps([busy, peer]) == 0


def test_a_drained_device_admits_no_job_and_why_says_what_would_help(salusd, crew):
    daemon = salusd()
    assert salus(daemon, "drain", "0", "--reason", "dust").returncode == 0
    waiting = daemon.hook(
        "job_start", job="7", uid=os.getuid(), gpus="0", segment="salus:1;P=4194304;E=4194304;K=shared", wait_ms=100
    )
    assert waiting["ok"] is False
    output = salus(daemon, "why", "7")
    assert output.returncode == 0, output.stderr
    assert "drained" in output.stdout
    assert "dust" in output.stdout
    assert "the device is resumed: it would run immediately" in output.stdout
    assert salus(daemon, "resume", "host0").returncode == 0
    daemon.wait_for(lambda status: [s["state"] for s in status["sessions"]] == ["idle"], "it is admitted")
    daemon.hook("job_end", job="7", uid=os.getuid())


def test_commands_and_their_exit_codes(salusd):
    daemon = salusd()
    status = salus(daemon, "status", "--json")
    assert json.loads(status.stdout)["node"] == "n1"
    assert "host0" in salus(daemon, "status").stdout
    top = salus(daemon, "top", "--once")
    assert "host0" in top.stdout
    assert max(len(line) for line in top.stdout.splitlines()) <= 80
    assert json.loads(salus(daemon, "top", "--json").stdout)["sessions"] == []
    assert salus(daemon, "policy", "set", "nonsense").returncode == 2
    assert salus(daemon, "policy", "set", "fifo").returncode == 0
    assert salus(daemon, "why", "999").returncode == 3
    daemon.stop()
    gone = salus(daemon, "status")
    assert gone.returncode == 5
    assert gone.stderr.count("\n") == 1


@pytest.mark.parametrize("verb", ["job_start", "job_end"])
def test_hooks_may_run_twice(verb, salusd):
    daemon = salusd()
    segment = "salus:1;P=4194304;E=4194304;K=shared"
    request = {"job": "8", "uid": os.getuid(), "gpus": "0", "segment": segment, "wait_ms": 3000}
    assert daemon.hook("job_start", **request)["ok"]
    for _ in range(2):
        assert daemon.hook(verb, **request)["ok"]
    assert len(daemon.status()["sessions"]) == (1 if verb == "job_start" else 0)
    assert daemon.hook("job_start", **request | {"restart": 1})["ok"]
    assert len(daemon.status()["sessions"]) == 1


def test_a_job_gets_the_bytes_of_its_segment_even_if_slurm_did_not_answer_its_prolog(salusd, tmp_path):
    """Many jobs that start at once make slurmctld slow. Without its segment, the job would wait for a whole device."""
    segment = "salus:1;P=4194304;E=4194304;K=shared"
    squeue = tmp_path / "squeue"
    row = ["9", "RUNNING", "0", str(os.getuid()), "gres:salus:1", "physics", "normal", "main", segment]
    squeue.write_text(f"#!/bin/sh\nmkdir '{tmp_path}/asked' 2>/dev/null && exit 1\n{squeue_script(row)}\n")
    squeue.chmod(0o755)
    tmp_path.chmod(0o755)
    daemon = salusd(config=f"SlurmBinDir={tmp_path}")
    request = {"uid": os.getuid(), "gpus": "0", "wait_ms": 20000}
    assert daemon.hook("job_start", job="8", segment=segment, **request)["ok"]
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda _: daemon.hook("job_start", job="9", **request), range(2)))
    assert [answer["ok"] for answer in answers] == [True, True], daemon.log_tail()
    sizes = [(one["job"], one["persistent_bytes"], one["ephemeral_bytes"]) for one in daemon.status()["sessions"]]
    assert sizes == [("8", 4194304, 4194304), ("9", 4194304, 4194304)]
