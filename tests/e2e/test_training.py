"""Real PyTorch jobs through the whole stack: measured once, then shared as the arithmetic says, with equal results."""

import re
import shutil
from pathlib import Path

import pytest

from nodedaemon.core.memory import charge_units, with_headroom
from nodedaemon.core.types import MIB
from tests.e2e.conftest import SLURM_ROOT
from tests.support.lab import wait_for

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(SLURM_ROOT is not None, reason="another root file system has no PyTorch")


@pytest.fixture(scope="module")
def training(cluster):
    """Options by which a job finds examples and a Python that its user may run."""
    folder = cluster.plan.path("work", "examples")
    if not folder.exists():
        shutil.copytree(ROOT / "examples", folder)
    return f"--export=ALL,PYTHON={cluster.python}"


def train(lab, training, *argv, user="games", iterations=15):
    output = f"{lab.work}/train-%j.txt"
    job = lab.sbatch(training, *argv, "examples/train.sh", "--iterations", iterations, user=user, output=output)
    return job, lab.work / f"train-{job}.txt"


def checksum(path):
    return re.search(r"checksum (\S+)", path.read_text())[1]


def wait_done(lab, job, output):
    state = lab.wait_state(job, "COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", seconds=240)
    assert state == "COMPLETED", output.read_text()


def test_the_first_run_is_measured_and_the_next_share_a_device_with_the_same_results(lab, training):
    first, output = train(lab, training)
    assert lab.charge(first) == lab.whole_device
    wait_done(lab, first, output)
    expected = checksum(output)
    # The profile is written by the time that a job of the same signature is charged less than a device.
    held = []
    wait_for(lambda: held.append(lab.sbatch("-H", training, "examples/train.sh", "--iterations", 15))
             or lab.segment(held[-1]).kind == "shared", "the profile to be known", 60)  # fmt: skip
    lab.run("scancel", *held)
    jobs = [train(lab, training) for _ in range(4)]
    segments = [lab.segment(job) for job, _ in jobs]
    plan = lab.cluster.plan
    for segment in segments:
        units = charge_units(segment.persistent_bytes, segment.ephemeral_bytes, plan.lane_reserve_bytes)
        assert segment.shard_count == units
        assert segment.persistent_bytes > with_headroom(50 * MIB, 0)
    fits = plan.device_shards // segments[0].shard_count
    assert fits >= 2, "the example has grown: give the devices more memory"
    wait_for(lambda: all(lab.state(job) != "PENDING" for job, _ in jobs), "all four to start")
    places = [lab.device(job) for job, _ in jobs if lab.state(job) == "RUNNING"]
    assert max(places.count(place) for place in places) <= fits
    if len(places) == 4:
        assert len(set(places)) == -(-4 // fits)
    for job, output in jobs:
        wait_done(lab, job, output)
        assert checksum(output) == expected


def test_two_users_never_share_a_lane(lab, training):
    mine = [train(lab, training, "--salus-mem=300M,64M", user=user) for user in ("games", "news")]
    domains = set()

    def both_have_run():
        for node in lab.cluster.plan.nodes:
            told = lab.node_status(node)
            users = {row["session"]: row["user"] for row in told["sessions"]}
            for lane in told["lanes"]:
                owners = {users[session] for session in lane["sessions"] if session in users}
                assert len(owners) <= 1, lane
                domains.add(lane["domain"])
        return all(lab.state(job) in ("COMPLETED", "FAILED") for job, _ in mine)

    wait_for(both_have_run, "both jobs to end", 240)
    for job, output in mine:
        wait_done(lab, job, output)
    assert domains >= {"user:games", "user:news"}


def test_several_programs_and_ranks_in_one_job_run_and_end(lab, training):
    script = lab.script(
        "several.sh",
        "export OMP_NUM_THREADS=1",
        '"$PYTHON" examples/cnn.py --iterations 6 &',
        'srun --overlap -n1 "$PYTHON" examples/cnn.py --iterations 6',
        "wait",
        '"$PYTHON" -m torch.distributed.run --nproc-per-node 2 examples/cnn.py --iterations 4',
    )
    output = lab.work / "several.txt"
    job = lab.sbatch("--gres=salus:1", "--salus-mem=700M,64M", "-c2", training, script, output=str(output))
    wait_done(lab, job, output)
    assert output.read_text().count("checksum") == 4


def test_an_idle_allocation_holds_its_charge_and_nobody_waits_for_it(lab, training):
    idle = lab.sbatch("--gres=salus:1", "--salus-mem=300M,64M", "--wrap", "sleep 300")
    lab.wait_state(idle, "RUNNING")
    job, output = train(lab, training, "--salus-mem=300M,64M")
    wait_done(lab, job, output)
    assert lab.charge(idle)["shard"] == charge_units(300 * MIB, 64 * MIB, lab.cluster.plan.lane_reserve_bytes)
