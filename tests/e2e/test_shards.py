"""Devices of 80 GiB with 5,120 shards each: the charges and how many jobs fit. BENCH=shards measures the speed."""

import os

import pytest

from nodedaemon.core.types import GIB, MIB
from slurm_plugin.cluster import control
from slurm_plugin.cluster.plan import ClusterPlan
from tests.support.cluster_fixtures import SLURM_ROOT
from tests.support.lab import Lab, wait_for


@pytest.fixture
def large(open_directory):
    plan = ClusterPlan(
        directory=open_directory / "large", node_count=1, device_bytes=80 * GIB, lane_reserve_bytes=2 * MIB,
        shard_count=5_120, with_daemons=False, root=SLURM_ROOT,
    )  # fmt: skip
    cluster = control.up(plan, owner_pid=os.getpid())
    yield Lab(cluster)
    cluster.down()


def test_a_device_of_5120_shards_is_filled_completely(large):
    assert large.charge(large.sbatch("-H", "--gres=salus:1", "--wrap", "true")) == large.whole_device
    job = large.sbatch("-H", "--gres=salus:1", "--salus-mem=30G", "--wrap", "true")
    assert large.charge(job) == {"salus": 1, "shard": 30 * 64}
    large.cancel_all()
    jobs = [large.sbatch("--gres=salus:1", "--salus-mem=30G", "--wrap", "sleep 300") for _ in range(8)]
    wait_for(lambda: large.ask("squeue", "-h", "-t", "R").count("\n") == 4, "four jobs to run")
    places = [large.device(job) for job in jobs if large.state(job) == "RUNNING"]
    assert sorted(places.count(place) for place in set(places)) == [2, 2]
    waiting = next(job for job in jobs if large.state(job) == "PENDING")
    wait_for(lambda: large.field(waiting, "Reason") == "Resources", "the reason")
    large.run("scancel", next(job for job in jobs if large.state(job) == "RUNNING"))
    wait_for(lambda: large.ask("squeue", "-h", "-t", "R").count("\n") == 4, "the next job to run")
    large.cancel_all()
