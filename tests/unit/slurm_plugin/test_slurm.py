"""The output of three Slurm releases, read into the same values, and the interface of pyslurm."""

import copy
import io
import json
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from slurm_plugin.slurm import QueuedJob, SlurmError
from slurm_plugin.slurm import pyslurm as backend
from slurm_plugin.slurm.cli import SlurmCommands, read_job
from tools import pyslurm_interface

OLD = {
    "job_id": 7, "array_job_id": 7, "array_task_id": None, "array_task_string": "2-12%1", "job_state": "PENDING",
    "user_id": 5, "user_name": "games", "account": "", "qos": "normal", "partition": "main", "name": "a",
    "tres_per_node": "gres:salus:1,gres:shard:48", "admin_comment": "salus:1;adm=x", "state_reason": "Resources",
    "nodes": "",
}  # fmt: skip
NEW = {
    **OLD, "job_id": 7, "array_job_id": {"set": True, "infinite": False, "number": 7},
    "array_task_id": {"set": False, "infinite": False, "number": 0}, "job_state": ["PENDING"],
    "tres_per_node": "gres/salus:1,gres/shard:48",
}  # fmt: skip


def test_a_waiting_array_is_the_same_job_in_all_releases():
    old, new = read_job(OLD), read_job(NEW)
    assert (old.target, old.state, old.uid) == ("7_[2-12]", "PENDING", 5)
    assert (new.target, new.state, new.uid) == (old.target, old.state, old.uid)


def test_an_array_task_and_a_plain_job_have_their_own_names():
    task = {**OLD, "job_id": 9, "array_task_id": 3, "array_task_string": "", "job_state": "RUNNING"}
    assert read_job(task).target == "7_3"
    assert read_job({**OLD, "array_job_id": 0, "array_task_string": ""}).target == "7"


def test_a_command_that_fails_or_hangs_raises_slurm_error():
    with pytest.raises(SlurmError, match="no answer in"):
        SlurmCommands(timeout_s=0.05).run("sleep", "5")
    with pytest.raises(SlurmError, match="exit status 1"):
        SlurmCommands().run("false")
    with pytest.raises(SlurmError, match="SlurmBinDir"):
        SlurmCommands(directory="/nonexistent").run("squeue")


@pytest.mark.parametrize(
    ("text", "enforced"),
    [
        ("AccountingStorageEnforce = none\nAccountingStorageHost   = db\n", set()),
        ("AccountingStorageEnforce = associations,limits,qos\n", {"associations", "limits", "qos"}),
        ("AccountingStorageEnforce = limits\n", {"associations", "limits"}),
        ("AccountingStorageEnforceOther = qos\n", set()),
        ("", set()),
    ],
)
def test_what_slurm_enforces_is_read_from_its_running_configuration(tmp_path, text, enforced):
    (tmp_path / "config").write_text(f"Configuration data as of today\nAccountingStorageBackupHost = (null)\n{text}")
    program = tmp_path / "scontrol"
    program.write_text(f'#!/bin/sh\n[ "$*" = "show config" ] && cat {tmp_path}/config\n')
    program.chmod(0o755)
    assert SlurmCommands(str(tmp_path)).enforcement() == enforced


INTERFACE = json.loads(Path(pyslurm_interface.__file__).with_suffix(".json").read_text())


def test_the_newest_pyslurm_has_everything_that_we_use():
    assert pyslurm_interface.missing(INTERFACE) == []
    assert INTERFACE["version"] == "25.11.2"


@pytest.mark.parametrize(
    ("name", "gone"), [("Job", "gres_per_node"), ("Job", "admin_comment"), ("Jobs", "load"), ("errors", "PyslurmError")]
)
def test_a_release_that_lacks_something_is_reported(name, gone):
    drifted = copy.deepcopy(INTERFACE)
    drifted["classes"][name].remove(gone)
    assert pyslurm_interface.missing(drifted) == [f"{name}.{gone}"]


def test_an_interface_is_read_from_a_source_distribution(tmp_path):
    job = (
        "cdef class Jobs(dict):\n    def load():\n        pass\n\n\n"
        "cdef class Job:\n\n    def __cinit__(self):\n        pass\n\n# a note\n    @property\n    def id(self):\n"
        "        return 1\n\n    def _hidden(self):\n        pass\n\ndef later(self):\n    pass\n"
    )
    files = {
        "job/job.pyx": job, "node.pyx": "cdef class Node:\n    def name(self):\n        pass\n", "partition.pyx": "",
        "error.pyx": "class PyslurmError(Exception):\n    pass\n",
    }  # fmt: skip
    archive = tmp_path / "pyslurm-1.tar.gz"
    with tarfile.open(archive, "w:gz") as made:
        texts = {f"pyslurm/core/{name}": text for name, text in files.items()}
        for name, text in {**texts, "pyslurm/version.py": '__version__ = "1.2"\n'}.items():
            entry = tarfile.TarInfo(f"pyslurm-1/{name}")
            entry.size = len(text)
            made.addfile(entry, io.BytesIO(text.encode()))
    interface = pyslurm_interface.interface(pyslurm_interface.read_distribution(archive))
    assert interface["version"] == "1.2"
    assert interface["classes"] == {
        "Jobs": ["load"], "Job": ["id"], "Nodes": [], "Node": ["name"], "Partitions": [], "Partition": [],
        "errors": ["PyslurmError"],
    }  # fmt: skip


def fake_pyslurm():
    """A module with exactly the attributes that we use."""
    job = dict.fromkeys(backend.JOB_ATTRIBUTES)
    job |= {"id": 9, "array_id": 7, "array_tasks_waiting": "2-12", "state": "PENDING", "user_id": 5,
            "gres_per_node": {"gres/salus": 1, "shard": 48}, "admin_comment": "salus:1;adm=x"}  # fmt: skip
    partition = {"name": "main", "is_default": True}

    def collection(value):
        return SimpleNamespace(load=lambda: {0: SimpleNamespace(**value)})

    return SimpleNamespace(Jobs=collection(job), Partitions=collection(partition), PyslurmError=ValueError)


def test_the_values_of_pyslurm_are_read_into_ours():
    slurm = backend.PyslurmSlurm(fake_pyslurm())
    assert slurm.jobs() == [
        QueuedJob(id=9, target="7_[2-12]", state="PENDING", uid=5, tres_per_node="gres:salus:1,gres:shard:48",
                  admin_comment="salus:1;adm=x", array_tasks="2-12")
    ]  # fmt: skip
    assert slurm.default_partition() == "main"


def test_a_pyslurm_for_another_release_is_refused():
    backend.check_version("22.5.3", (22, 5))
    for version in ("25.11.2", "", "x"):
        with pytest.raises(SlurmError, match="not made for Slurm"):
            backend.check_version(version, (24, 11))
