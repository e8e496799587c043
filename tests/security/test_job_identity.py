"""Cgroups that an attacker names: real ones, made by the attacker below a directory that root has delegated."""

import os
import signal
import uuid
from pathlib import Path

import pytest

from tests.support.attacker import ATTACKER
from tests.support.device_kind import IS_CUDA
from tests.support.salusd import wait_until
from tests.support.squeue import squeue_script

pytestmark = pytest.mark.skipif(IS_CUDA, reason="one kind of device is enough")

SEGMENT = "salus:1;P=4194304;E=4194304;K=shared"
SCOPE = f"{uuid.uuid4()}_slurmstepd.scope"
#: `str.splitlines` splits at each of them.
SEPARATORS = ["\v", "\f", "\r", "\x1c", "\x85", "\u2028"]


def version_2_mount():
    for line in Path("/proc/self/mounts").read_bytes().split(b"\n"):
        fields = line.split()
        if len(fields) > 2 and fields[2] == b"cgroup2" and os.access(fields[1], os.W_OK):
            return Path(os.fsdecode(fields[1]))
    return None


@pytest.fixture
def delegate():
    """A function that makes a cgroup, puts a process into it, and delegates it to the attacker."""
    mount = version_2_mount()
    if mount is None:
        pytest.skip("needs a version 2 hierarchy that root can change")
    made = []

    def make(path, pid):
        group = mount / path
        try:
            for part in reversed([group, *group.parents[: len(group.relative_to(mount).parts) - 1]]):
                if not part.exists():
                    part.mkdir()
                    made.append(part)
        except OSError as error:
            pytest.skip(f"cannot make cgroups here: {error.strerror}")
        for name in ("", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
            os.chown(group / name, ATTACKER, ATTACKER)
        (group / "cgroup.procs").write_text(str(pid))
        return group

    yield make
    for top in made[:1]:
        for procs in top.rglob("cgroup.procs"):
            for pid in procs.read_text().split():
                os.kill(int(pid), signal.SIGKILL)
        for events in [*top.rglob("cgroup.events"), top / "cgroup.events"]:
            wait_until(lambda events=events: "populated 0" in events.read_text(), "its processes end")
        for directory in sorted([top, *(one for one in top.rglob("*") if one.is_dir())], reverse=True):
            directory.rmdir()


@pytest.fixture
def daemon(salusd, tmp_path):
    """A daemon that knows jobs 42 and 77 of the attacker. Slurm knows no other job that has a device."""
    tmp_path.joinpath("scontrol").write_text("#!/bin/sh\necho PID JOBID STEPID LOCALID GLOBALID\n")
    row = ["99", "RUNNING", "0", str(ATTACKER), "N/A", "", "", "", "(null)"]
    tmp_path.joinpath("squeue").write_text(f"#!/bin/sh\n{squeue_script(row)}\n")
    for name in ("scontrol", "squeue"):
        tmp_path.joinpath(name).chmod(0o755)
    started = salusd(config=f"LocalJobs=no\nSlurmBinDir={tmp_path}\nPrologTimeout=5")
    for job in ("42", "77"):
        answer = started.hook("job_start", job=job, uid=ATTACKER, gpus="0", segment=SEGMENT, wait_ms=30_000)
        assert answer["ok"], answer
    return started


def attached_jobs(daemon):
    return {session["job"] for session in daemon.status()["sessions"] if session["pid"]}


@pytest.mark.parametrize("separator", SEPARATORS)
def test_the_name_of_a_delegated_cgroup_makes_no_process_part_of_a_job(daemon, rogue, delegate, separator):
    bad = rogue(daemon, uid=ATTACKER)
    group = delegate(f"salus-{uuid.uuid4()}", bad.process.pid)
    # The attacker makes the names itself.
    seen = bad.do("enter_cgroup", path=str(group / f"x{separator}0::" / SCOPE / "job_77"))
    assert f"/{SCOPE}/job_77" in seen["cgroup"]
    answer = bad.do("hello")
    assert (answer["kind"], "belongs to no Slurm job" in answer["text"]) == ("REJECT", True), answer
    assert attached_jobs(daemon) == set()


# Names of tests must not differ between the processes that collect them, so the scope is filled in later.
@pytest.mark.parametrize("name", ["job_77/step_0", "x/SCOPE/job_77", "slurm/uid_0/job_77", "\udcff"])
def test_a_process_stays_in_the_job_whose_cgroup_slurm_made(daemon, rogue, delegate, name):
    bad = rogue(daemon, uid=ATTACKER)
    group = delegate(f"{SCOPE}/job_42/step_0/user", bad.process.pid)
    bad.do("enter_cgroup", path=str(group / name.replace("SCOPE", SCOPE)))
    assert bad.do("hello")["kind"] == "WELCOME"
    assert attached_jobs(daemon) == {"42"}


def test_a_process_of_a_job_without_a_share_of_a_device_is_refused(daemon, rogue, delegate):
    bad = rogue(daemon, uid=ATTACKER)
    group = delegate(f"{SCOPE}/job_99/step_0", bad.process.pid)
    bad.do("enter_cgroup", path=str(group / "user"))
    answer = bad.do("hello")
    assert answer["kind"] == "REJECT"
    assert "job 99: Slurm gave it no share of a device" in answer["text"]
    assert attached_jobs(daemon) == set()
    assert daemon.status()["devices"][0]["session_count"] == 2
