"""The job comes from the cgroup, in every form that Slurm has used."""

from pathlib import Path

import pytest

from nodedaemon.drivers.cgroup import JobPlace, job_group, parse_listpids, place_of_cgroup, place_of_process


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("4:memory:/slurm/uid_1000/job_123/step_0/task_0", JobPlace("123", None, "0")),
        ("4:memory:/slurm_node1/uid_1000/job_123/step_batch", JobPlace("123", None, "batch")),
        ("4:freezer:/slurm/uid_1000/job_123", JobPlace("123", None, None)),
        ("0::/system.slice/slurmstepd.scope/job_42/step_extern/user/task_special", JobPlace("42", None, "extern")),
        ("0::/system.slice/node1_slurmstepd.scope/job_42/step_0/user/task_0", JobPlace("42", None, "0")),
        ("0::/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0", JobPlace(None, "s5K1KKYAYG5D00", "0")),
        ("0::/system.slice/slurmstepd.scope/s5K1KKYAYG5D00", JobPlace(None, "s5K1KKYAYG5D00", None)),
        ("0::/slurmstepd.scope/job_7", JobPlace("7", None, None)),
    ],
)
def test_known_forms(path, place):
    assert place_of_cgroup(f"9:name=systemd:/\n{path}\n") == place


@pytest.mark.parametrize(
    "path",
    [
        "0::/user.slice/user-1000.slice/session-3.scope",
        "0::/system.slice/slurmstepd.scope/system",
        "0::/system.slice/slurmstepd.scope",
        # A user may name a cgroup of his own as he likes, but not at the root.
        "0::/user.slice/user-1000.slice/user@1000.service/slurm/uid_0/job_1/step_0",
        "0::/user.slice/slurmstepd.scope/job_1/step_0",
        "0::/system.slice/slurmstepd.scope/job_12x/step_0",
        "",
    ],
)
def test_what_is_not_a_job_of_slurm(path):
    assert place_of_cgroup(path) is None


def test_a_process_that_is_gone_has_no_place(tmp_path):
    assert place_of_process(1, tmp_path) is None


def test_listpids_gives_the_job_of_each_pid():
    text = "PID      JOBID    STEPID   LOCALID GLOBALID\n4711     12       batch    0       0\n-1  13  0  0  0\n"
    assert parse_listpids(text) == {4711: JobPlace("12", None, "batch")}


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n", "/system.slice/slurmstepd.scope/job_7"),
        ("3:memory:/slurm/uid_0/job_7\n0::/n1_slurmstepd.scope/job_7\n", "/n1_slurmstepd.scope/job_7"),
        ("0::/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0\n", "/system.slice/slurmstepd.scope/s5K1KKYAYG5D00"),
        ("3:memory:/slurm/uid_0/job_7/step_0\n0::/\n", ""),
        ("0::/user.slice/user-0.slice/session-1.scope\n", ""),
    ],
)
def test_a_jobs_group_is_its_own_version_2_path(tmp_path: Path, text: str, group: str) -> None:
    (tmp_path / "9").mkdir()
    (tmp_path / "9/cgroup").write_text(text)
    assert job_group(9, tmp_path) == group
    assert job_group(10, tmp_path) == ""
