"""Slurm's answers of three releases, read into the same values; and pyslurm's interface."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from slurm_plugin.slurm import QueuedJob, SlurmError
from slurm_plugin.slurm import pyslurm as backend
from slurm_plugin.slurm.cli import SlurmCommands, read_job

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


def test_a_command_that_fails_or_hangs_is_slurms_error():
    with pytest.raises(SlurmError, match="no answer in"):
        SlurmCommands(timeout_s=0.05).run("sleep", "5")
    with pytest.raises(SlurmError, match="exit status 1"):
        SlurmCommands().run("false")
    with pytest.raises(SlurmError, match="SlurmBinDir"):
        SlurmCommands(directory="/nonexistent").run("squeue")


INTERFACE = json.loads((Path(__file__).parents[2] / "support" / "pyslurm_interface.json").read_text())["classes"]


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("Job", backend.JOB_ATTRIBUTES), ("Node", backend.NODE_ATTRIBUTES), ("Partition", backend.PARTITION_ATTRIBUTES),
        ("Jobs", ("load",)), ("Nodes", ("load",)), ("Partitions", ("load",)),
    ],
)  # fmt: skip
def test_what_we_use_of_pyslurm_is_in_its_newest_release(name, attributes):
    assert set(attributes) <= set(INTERFACE[name])
    assert "PyslurmError" in INTERFACE["errors"]


def fake_pyslurm():
    """A module with exactly the attributes that we say we use."""
    job = dict.fromkeys(backend.JOB_ATTRIBUTES)
    job |= {"id": 9, "array_id": 7, "array_tasks_waiting": "2-12", "state": "PENDING", "user_id": 5,
            "gres_per_node": {"salus": 1, "shard": 48}, "admin_comment": "salus:1;adm=x"}  # fmt: skip
    node = {"name": "node1", "state": "IDLE", "configured_gres": {"gpu": 2, "shard": 96}, "partitions": ["main"]}
    partition = {"name": "main", "is_default": True}

    def collection(value):
        return SimpleNamespace(load=lambda: {0: SimpleNamespace(**value)})

    return SimpleNamespace(Jobs=collection(job), Nodes=collection(node), Partitions=collection(partition),
                           PyslurmError=ValueError)  # fmt: skip


def test_pyslurms_values_become_ours():
    slurm = backend.PyslurmSlurm(fake_pyslurm(), SlurmCommands())
    assert slurm.jobs() == [
        QueuedJob(id=9, target="7_[2-12]", state="PENDING", uid=5, tres_per_node="gres:salus:1,gres:shard:48",
                  admin_comment="salus:1;adm=x", array_tasks="2-12")
    ]  # fmt: skip
    assert slurm.nodes()[0].gres == "gpu:2,shard:96"
    assert slurm.default_partition() == "main"


def test_a_pyslurm_for_another_release_is_refused():
    backend.check_version("22.5.3", (22, 5))
    for version in ("25.11.2", "", "x"):
        with pytest.raises(SlurmError, match="not made for Slurm"):
            backend.check_version(version, (24, 11))
