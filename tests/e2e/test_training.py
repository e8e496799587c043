"""Real PyTorch jobs through the whole stack: measured once, then packed by their charges, with equal results."""

import json
import re
import shutil
from pathlib import Path

import pytest

from nodedaemon.core.memory import charge_units, with_headroom
from nodedaemon.core.types import MIB
from tests.support.cluster_fixtures import SLURM_ROOT
from tests.support.lab import Lab, wait_for

ROOT = Path(__file__).parents[2]
#: Several of these fit one device, each with a lane of its own.
SMALL = "--salus-mem=300M,64M"
#: Part of the signature. No shell block of a page uses this number, so the first run here is an unknown job.
ITERATIONS = 16

pytestmark = pytest.mark.skipif(SLURM_ROOT is not None, reason="another root file system has no PyTorch")


@pytest.fixture(scope="module")
def training(cluster):
    """The options that give a job the examples and a Python that its user can run."""
    folder = cluster.plan.path("work", "examples")
    if not folder.exists():
        shutil.copytree(ROOT / "examples", folder)
    return f"--export=ALL,PYTHON={cluster.python}"


@pytest.fixture(scope="module", autouse=True)
def requeued_job(cluster, training):
    """An unknown job under UnknownJob=requeue. It starts before the other tests, because Slurm requeues it late."""
    lab = Lab(cluster)
    job = lab.sbatch(
        training, "-p", "requeue", "--nodelist=node2", "--open-mode=append", "--salus-profile=requeued",
        "examples/train.sh", "--iterations", 100_000, output=f"{lab.work}/requeued.txt",
    )  # fmt: skip
    yield job
    lab.run("scancel", job)


def train(lab, training, *argv, user="games", iterations=ITERATIONS):
    output = f"{lab.work}/train-%j.txt"
    job = lab.sbatch(training, *argv, "examples/train.sh", "--iterations", iterations, user=user, output=output)
    return job, lab.work / f"train-{job}.txt"


def checksum(path):
    return re.search(r"checksum (\S+)", path.read_text())[1]


def wait_done(lab, job, output):
    state = lab.wait_state(job, "COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", seconds=240)
    assert state == "COMPLETED", output.read_text()


def wait_trains(lab, job, output):
    """Wait until the job's process is connected and has run iterations."""
    wait_for(lambda: output.exists() and "iteration 5/" in output.read_text(), f"job {job} to train", 60)
    (session,) = [row for row in lab.sessions(job) if row["is_connected"]]
    return session


def test_the_first_run_is_measured_four_share_one_device_and_the_fifth_opens_the_next(lab, training):
    first, output = train(lab, training)
    assert lab.charge(first) == lab.whole_device
    wait_done(lab, first, output)
    expected = checksum(output)
    # The profile has been written when a job with the same signature is charged less than a device.
    held = []
    wait_for(lambda: held.append(lab.sbatch("-H", training, "examples/train.sh", "--iterations", ITERATIONS))
             or lab.segment(held[-1]).kind == "shared", "the profile to be known", 60)  # fmt: skip
    lab.run("scancel", *held)
    # Hold the jobs until all are submitted, so that none ends before the last one starts.
    jobs = [train(lab, training, "-H", "--nodelist=node1") for _ in range(5)]
    plan = lab.cluster.plan
    for job, _ in jobs:
        segment = lab.segment(job)
        units = charge_units(segment.persistent_bytes, segment.ephemeral_bytes, plan.lane_reserve_bytes)
        assert lab.charge(job) == {"salus": 1, "shard": units}
        assert segment.persistent_bytes > with_headroom(50 * MIB, 0)
        assert plan.device_shards // units == 4, "the example has changed: adapt the size of the devices in conftest.py"
    lab.run("scontrol", "release", *(job for job, _ in jobs))
    wait_for(lambda: all(lab.state(job) != "PENDING" for job, _ in jobs), "all five to start")
    places = [lab.device(job) for job, _ in jobs]
    assert sorted(places.count(place) for place in set(places)) == [1, 4]
    for job, output in jobs:
        wait_done(lab, job, output)
        assert checksum(output) == expected


def lane_inodes(pid):
    """The lane memory that a process has mapped; none if the process ends meanwhile."""
    try:
        lines = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    except (FileNotFoundError, ProcessLookupError):
        return set()
    return {line[4] for line in lines if len(line) > 5 and line[5].startswith("/memfd:salus-lane")}


def test_two_users_never_map_the_same_lane_memory(lab, training):
    # Lanes of this size do not fit side by side, so the two jobs use one after the other.
    mine = [train(lab, training, "--salus-mem=280M,500M", "--nodelist=node1", user=user, iterations=40)
            for user in ("games", "news")]  # fmt: skip
    mapped, domains, lane_users = {"games": set(), "news": set()}, set(), []

    def both_have_run():
        status = lab.node_status("node1")
        users = {row["session"]: row["user"] for row in status["sessions"]}
        for row in status["sessions"]:
            if row["pid"]:
                mapped[row["user"]] |= lane_inodes(row["pid"])
        for lane in status["lanes"]:
            owners = {users[session] for session in lane["sessions"] if session in users}
            lane_users.append(owners)
            domains.add(lane["domain"])
        return all(lab.state(job) in ("COMPLETED", "FAILED") for job, _ in mine)

    wait_for(both_have_run, "both jobs to end", 240)
    for job, output in mine:
        wait_done(lab, job, output)
    assert max(map(len, lane_users)) == 1
    assert domains >= {"user:games", "user:news"}
    assert mapped["games"]
    assert mapped["news"]
    assert not mapped["games"] & mapped["news"]


TRY_SOCKET = """
import json, socket, sys
kind = socket.SOCK_SEQPACKET if sys.argv[1].endswith("salusd.sock") else socket.SOCK_STREAM
with socket.socket(socket.AF_UNIX, kind) as peer:
    peer.settimeout(5)
    peer.connect(sys.argv[1])
    peer.sendall(sys.argv[2].encode() + (b"" if kind == socket.SOCK_SEQPACKET else b"\\n"))
    print(peer.recv(65536).decode(errors="replace"))
"""


def test_one_user_cannot_see_or_influence_anothers_session(lab, training):
    job, output = train(lab, training, SMALL, "--nodelist=node1", iterations=40)
    session = wait_trains(lab, job, output)
    run = lab.cluster.plan.path("run", "node1")

    def attempt(socket_name, **request):
        done = lab.run("python3", "-c", TRY_SOCKET, run / socket_name, json.dumps(request), user="news")
        return done.stdout

    # Another user's session is visible as load, without its job, user, process or memory.
    (seen,) = json.loads(attempt("control.sock", verb="status"))["sessions"]
    assert not any(seen[name] for name in ("job", "user", "name", "pid", "own_bytes", "reason"))
    for verb, fields in (("drain", {"device": session["device"]}), ("policy", {"policy": "fifo"}), ("reload", {})):
        assert '"ok":true' not in attempt("control.sock", verb=verb, **fields).replace(" ", ""), verb
    for verb in ("job_end", "task_env", "job_start"):
        assert '"ok":true' not in attempt("salusd.sock", verb=verb, job=job, uid=5).replace(" ", ""), verb
    descriptors = lab.run("ls", f"/proc/{session['pid']}/fd", user="news")
    assert descriptors.returncode != 0
    for command in (
        ("scancel", job),
        ("scontrol", "suspend", job),
        ("scontrol", "update", f"jobid={job}", "gres=none"),
    ):
        lab.run(*command, user="news")
    assert lab.run("rm", "-f", run / "jobs" / job, user="news").returncode != 0
    assert lab.state(job) == "RUNNING"
    (now,) = lab.sessions(job)
    assert (now["session"], now["is_connected"], now["is_stopped"]) == (session["session"], True, False)
    wait_done(lab, job, output)


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


def test_no_job_waits_for_an_idle_notebook_in_an_allocation(lab, training):
    folder = lab.work / "notebook"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    program = lab.work / "notebook.py"
    shutil.copy(ROOT / "tests" / "support" / "notebook.py", program)
    # Both must use one lane: two lanes of 500 MiB do not fit the device.
    memory = "--salus-mem=280M,500M"
    with lab.background(
        "salloc", "--gres=salus:1", memory, "--nodelist=node1", "--job-name=notebook", "srun", lab.cluster.python,
        program, folder, "2", user="games",
    ) as notebook:  # fmt: skip
        (folder / "cell1").touch()
        wait_for((folder / "done1").exists, "the first cell", 60)
        idle = lab.ask("squeue", "-h", "-n", "notebook", "-o", "%A").strip()
        job, output = train(lab, training, memory, "--nodelist=node1")
        wait_done(lab, job, output)
        assert lab.state(idle) == "RUNNING"
        assert lab.charge(idle)["shard"] == charge_units(280 * MIB, 500 * MIB, lab.cluster.plan.lane_reserve_bytes)
        assert not (folder / "done2").exists()
        (folder / "cell2").touch()
        assert notebook.wait(60) == 0
    assert float((folder / "done2").read_text()) < float((folder / "done1").read_text())


def is_served(lab, job):
    """Whether the job's process is connected to a salusd, or the job has ended."""
    return lab.state(job) == "COMPLETED" or any(row["is_connected"] for row in lab.sessions(job))


def test_an_unknown_job_is_requeued_once_measured_and_then_runs_with_its_real_charge(lab, requeued_job):
    wait_for(lambda: lab.field(requeued_job, "Restarts") == "1", "the job to be requeued", 60)
    lab.wait_state(requeued_job, "RUNNING", seconds=150)
    segment = lab.segment(requeued_job)
    assert segment.kind == "shared"
    assert lab.charge(requeued_job) == {"salus": 1, "shard": segment.shard_count}
    assert segment.shard_count < lab.cluster.plan.device_shards
    wait_for(lambda: lab.sessions(requeued_job), lambda: f"its second run: {lab.daemon_log('node2')}")
    wait_for(lambda: is_served(lab, requeued_job), lambda: f"its process: {lab.daemon_log('node2')}")
    (session,) = lab.sessions(requeued_job)
    assert session["persistent_bytes"] == segment.persistent_bytes
    # A job that must not start twice is never requeued.
    done = lab.run("sbatch", "-H", "-p", "requeue", "--no-requeue", "--gres=salus:1", "--wrap", "true", user="games")
    once = done.stdout.split()[-1]
    assert lab.segment(once).kind == "exclusive"
    lab.run("scancel", once)


def test_training_survives_suspension_a_killed_slurmstepd_and_restarts(lab, training):
    """Three runs have the same result: suspended, without slurmstepd, and with all daemons down for a while."""
    options, count = (SMALL, "--nodelist=node1"), 100
    paused, paused_output = train(lab, training, *options, iterations=count)
    wait_trains(lab, paused, paused_output)
    lab.ask("scontrol", "suspend", paused)
    wait_for(lambda: lab.sessions(paused)[0]["is_stopped"], "salusd to see the suspension", 20)
    orphan, orphan_output = train(lab, training, *options, iterations=count)
    wait_trains(lab, orphan, orphan_output)
    lab.kill_slurmstepd(orphan)
    whole, whole_output = train(lab, training, *options, iterations=count)
    wait_trains(lab, whole, whole_output)
    for name in lab.PARTS:
        lab.cluster.stop(name)
    for name in lab.PARTS:
        lab.cluster.start(name)
    lab.ask("scontrol", "resume", paused)
    for job in (paused, whole):
        wait_for(
            lambda job=job: is_served(lab, job),
            lambda job=job: f"{job} to be connected again: {lab.daemon_log('node1')}",
            60,
        )
    # Its slurmstepd cannot report its end, so Slurm considers it running until it is cancelled.
    wait_for(lambda: "checksum" in orphan_output.read_text(), "the orphan to end", 120)
    wait_for(lambda: not any(row["is_connected"] for row in lab.sessions(orphan)), "its session to leave")
    lab.run("scancel", orphan)
    for job, output in ((paused, paused_output), (whole, whole_output)):
        wait_done(lab, job, output)
    assert len({checksum(output) for output in (paused_output, orphan_output, whole_output)}) == 1
    wait_for(lambda: not any(lab.sessions(job) for job in (paused, orphan, whole)), lab.sessions)
    assert not any(word in lab.ask("sinfo", "-h", "-N", "-o", "%T") for word in ("drain", "down", "fail"))
