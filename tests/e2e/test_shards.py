"""Devices of 80 GiB: 5,120 shards each. Placement is right, and not slower than with 256."""

import os
import statistics
import time

import pytest

from nodedaemon.core.types import GIB, MIB
from slurm_plugin.cluster import control
from slurm_plugin.cluster.plan import ClusterPlan
from tests.e2e.conftest import SLURM_ROOT
from tests.support.lab import Lab, wait_for

SHARDS_LARGE, SHARDS_SMALL = 5_120, 256


@pytest.fixture
def labs(open_directory):
    """Two clusters side by side that differ in nothing but the number of shards."""
    clusters = []
    try:
        for count in (SHARDS_SMALL, SHARDS_LARGE):
            plan = ClusterPlan(
                directory=open_directory / str(count), node_count=1, device_bytes=80 * GIB, lane_reserve_bytes=2 * MIB,
                shard_count=count, with_daemons=False, root=SLURM_ROOT,
            )  # fmt: skip
            clusters.append(control.up(plan, owner_pid=os.getpid()))
        yield [Lab(cluster) for cluster in clusters]
    finally:
        for cluster in clusters:
            cluster.down()


def fill(lab, shard_count):
    """Eight jobs of three eighths of a device: two fit on each, four wait. Seconds until the four run."""
    started = time.monotonic()
    memory = f"--salus-mem={shard_count * 3 // 8 * 16}M"
    jobs = [lab.sbatch("--gres=salus:1", memory, "--wrap", "sleep 300") for _ in range(8)]
    wait_for(lambda: lab.ask("squeue", "-h", "-t", "R").count("\n") == 4, "four jobs to run")
    seconds = time.monotonic() - started
    running = [job for job in jobs if lab.state(job) == "RUNNING"]
    places = [lab.device(job) for job in running]
    assert sorted(places.count(place) for place in set(places)) == [2, 2]
    lab.cancel_all()
    return seconds


def test_a_device_of_5120_shards_is_filled_as_one_of_256(labs):
    small, large = labs
    job = large.sbatch("-H", "--gres=salus:1", "--salus-mem=30G", "--wrap", "true")
    assert large.charge(job) == {"salus": 1, "shard": 30 * 64}
    assert large.charge(large.sbatch("-H", "--gres=salus:1", "--wrap", "true")) == large.whole_device
    large.cancel_all()
    spans = [(fill(small, SHARDS_SMALL), fill(large, SHARDS_LARGE)) for _ in range(3)]
    # No race is run here: a placement that depends on the count would take twenty times as long, not twice.
    assert statistics.median(s[1] for s in spans) < 3 * statistics.median(s[0] for s in spans) + 2
