"""The job of a process is found in its cgroup, in every form that Slurm has used."""

from pathlib import Path

import pytest

from nodedaemon.drivers.cgroup import JobPlace, job_group, parse_listpids, place_of_process


def place_in(directory: Path, text: str | bytes) -> JobPlace | None:
    (directory / "9").mkdir()
    (directory / "9/cgroup").write_bytes(text if isinstance(text, bytes) else text.encode())
    return place_of_process(9, directory)


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
def test_a_job_is_found_in_every_known_form(tmp_path, path, place):
    assert place_in(tmp_path, f"9:name=systemd:/\n{path}\n") == place


@pytest.mark.parametrize(
    "path",
    [
        "0::/user.slice/user-1000.slice/session-3.scope",
        "0::/system.slice/slurmstepd.scope/system",
        "0::/system.slice/slurmstepd.scope",
        # Users choose the names of their own cgroups, but cannot create one at the root.
        "0::/user.slice/user-1000.slice/user@1000.service/slurm/uid_0/job_1/step_0",
        "0::/user.slice/slurmstepd.scope/job_1/step_0",
        "0::/system.slice/slurmstepd.scope/job_12x/step_0",
        "0::/user.slice/user-1000.slice/user@1000.service/system.slice/slurmstepd.scope/job_1/step_0",
        "0::/user.slice/user-1000.slice/user@1000.service/job_1",
        # Digits of another script are digits for Python's text.
        "0::/system.slice/slurmstepd.scope/job_\u0661/step_0",
        "0::/system.slice/slurmstepd.scope/job_1 (deleted)",
        # Outside the cgroup namespace of the daemon.
        "0::/../system.slice/slurmstepd.scope/job_1/step_0",
        "0::/../../slurmstepd.scope/job_1",
        "4:memory:/../slurm/uid_0/job_1",
        "4:memory:/user/1000/slurm/uid_0/job_1",
        # Version 2 is hierarchy 0, and version 1 is every other.
        "0::/slurm/uid_0/job_1",
        "4:memory:/system.slice/slurmstepd.scope/job_1",
        # Two hierarchies that name different jobs.
        "4:memory:/slurm/uid_0/job_1\n5:cpuset:/slurm/uid_0/job_2",
        "",
    ],
)
def test_other_cgroups_are_not_slurm_jobs(tmp_path, path):
    assert place_in(tmp_path, f"{path}\n") is None


OWN = b"/system.slice/slurmstepd.scope/job_42/step_0/user/task_0/"
DELEGATED = b"/user.slice/user-1000.slice/user@1000.service/"


@pytest.mark.parametrize("separator", [b"\v", b"\f", b"\r", b"\x1c", b"\x1e", b"\xc2\x85", b"\xe2\x80\xa8"])
def test_the_name_of_a_cgroup_never_starts_a_line(tmp_path, separator):
    """`str.splitlines` splits text at each of these. The kernel accepts all of them in the name of a cgroup."""
    path = DELEGATED + b"x" + separator + b"0::/system.slice/slurmstepd.scope/job_77/step_0"
    assert place_in(tmp_path, b"0::" + path + b"\n") is None


@pytest.mark.parametrize(
    "name", [b"job_77", b"job_77/step_0", b"x/slurmstepd.scope/job_77", b"slurm/uid_0/job_77", b"\xff\xfe"]
)
def test_the_first_job_in_the_path_decides(tmp_path, name):
    assert place_in(tmp_path, b"1:name=x:/\n0::" + OWN + name + b"\n") == JobPlace("42", None, "0")


def test_a_process_that_is_gone_has_no_place(tmp_path):
    assert place_of_process(1, tmp_path) is None


def test_listpids_names_the_job_of_each_pid():
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
def test_the_group_of_a_job_is_its_version_2_path(tmp_path: Path, text: str, group: str) -> None:
    (tmp_path / "9").mkdir()
    (tmp_path / "9/cgroup").write_text(text)
    assert job_group(9, tmp_path) == group
    assert job_group(10, tmp_path) == ""
