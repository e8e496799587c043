"""Fixtures of tests on a cluster: a directory that other users can enter, and a cluster that most tests share."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from nodedaemon.core.types import MIB
from slurm_plugin.cluster import control
from slurm_plugin.cluster.plan import ClusterPlan
from tests.support.lab import Lab

#: Another release of Slurm, for `make test-slurm`.
SLURM_ROOT = Path(os.environ["SALUS_SLURM_ROOT"]) if "SALUS_SLURM_ROOT" in os.environ else None
ROOT = Path(__file__).parents[2]
#: An account that every Debian system has. On the tests' cluster it may see everybody's jobs.
OPERATOR = "mail"


def make_directory():
    # Other users cannot enter pytest's own directories, and the path of a unix socket must be short.
    directory = Path(tempfile.mkdtemp(prefix="salus-"))
    directory.chmod(0o755)
    return directory


@pytest.fixture
def open_directory():
    directory = make_directory()
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster():
    """Two nodes with two devices of 1408 MiB each: 72 shards of 16 MiB and a reserve of 256 MiB.

    By their measured profile (15 to 18 shards each), four runs of examples/train.sh share a device of this size, and a
    fifth does not fit. Unknown jobs in partition `requeue` are measured and requeued.
    """
    directory = make_directory()
    plan = ClusterPlan(
        directory=directory / "c",
        root=SLURM_ROOT,
        device_bytes=1408 * MIB,
        slurm_lines=("PartitionName=requeue Nodes=node1,node2 MaxTime=1:00:00 State=UP OverSubscribe=NO",),
        salus_lines=(
            "HighQOS=gold",
            "HighAccounts=physics",
            # The tests of a hung service wait until it is asked again.
            "AdmissionPause=4",
            f"Operators={OPERATOR}",
            "PartitionName=main ProbeTasks=1",
            "PartitionName=requeue UnknownJob=requeue",
        ),
    )
    cluster = control.up(plan, owner_pid=os.getpid())
    yield cluster
    cluster.down()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def lab(cluster):
    lab = Lab(cluster)
    yield lab
    lab.cancel_all()
