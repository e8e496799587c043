"""`sbatch --gres=salus:1` on real Slurm, up to the job's start: charges, packing, refusals, changes, restarts.

The tests write profiles to the database, so no job trains. A device has 72 shards of 16 MiB and a reserve of 256 MiB.
"""

import json
import signal
import socket
from pathlib import Path

import pytest

from nodedaemon.core.types import MIB
from slurm_plugin.admitd.credentials import digest
from tests.support.cluster_fixtures import SLURM_ROOT
from tests.support.lab import wait_for

SLEEP = "exec sleep 300"
ROOT = Path(__file__).parents[2]
#: 286 MiB with headroom, so that four such jobs fill a device.
KNOWN_MIB, KNOWN_SHARDS = 260, 18


def known_job(lab, name, persistent_mib=KNOWN_MIB, ephemeral_mib=100):
    """A script whose signature has a profile."""
    script = lab.script(name, SLEEP, f": {name}")
    probe = lab.sbatch("-H", "--gres=salus:1", script)
    signature = lab.segment(probe).signature
    lab.run("scancel", probe)
    lab.store_profile(signature, persistent_mib * MIB, ephemeral_mib * MIB)
    return script


def test_an_unknown_job_takes_a_device_and_known_ones_share_as_the_arithmetic_says(lab):
    script = lab.script("first.sh", SLEEP)
    first = lab.sbatch("--gres=salus:1", script)
    lab.wait_state(first, "RUNNING")
    assert lab.charge(first) == lab.whole_device
    assert lab.segment(first).kind == "exclusive"
    lab.store_profile(lab.segment(first).signature, KNOWN_MIB * MIB, 100 * MIB)
    rest = [lab.sbatch("--gres=salus:1", script) for _ in range(5)]
    for job in rest:
        lab.wait_state(job, "RUNNING")
        assert lab.charge(job) == {"salus": 1, "shard": KNOWN_SHARDS}
    places = [lab.device(job) for job in rest]
    assert lab.device(first) not in places
    assert sorted(places.count(place) for place in set(places)) == [1, 4]


def test_four_devices_hold_sixteen_jobs_and_the_next_waits(lab):
    script = known_job(lab, "sixteen.sh")
    jobs = [lab.sbatch("--gres=salus:1", script) for _ in range(17)]
    wait_for(lambda: sum(lab.state(job) == "RUNNING" for job in jobs) == 16, "sixteen jobs to run")
    waiting = next(job for job in jobs if lab.state(job) == "PENDING")
    wait_for(lambda: lab.field(waiting, "Reason") == "Resources", "the reason")
    places = [lab.device(job) for job in jobs if job != waiting]
    assert {places.count(place) for place in places} == {4}
    lab.run("scancel", jobs[0] if jobs[0] != waiting else jobs[1])
    lab.wait_state(waiting, "RUNNING")


def test_an_unknown_array_probes_with_one_task_and_packs_once_known(lab):
    script = lab.script("sweep.sh", SLEEP, ": sweep")
    array = lab.sbatch("--array=1-12", "--gres=salus:1", script)
    lab.wait_state(f"{array}_1", "RUNNING")
    assert lab.ask("squeue", "-h", "-r", "-t", "R", "-j", array).count("\n") == 1
    waiting = f"{array}_12"
    assert lab.charge(waiting) == lab.whole_device
    lab.store_profile(lab.segment(waiting).signature, KNOWN_MIB * MIB, 100 * MIB)
    wait_for(lambda: lab.ask("squeue", "-h", "-r", "-t", "R", "-j", array).count("\n") == 12, "all tasks to run")
    assert lab.charge(f"{array}_1") == lab.whole_device
    assert {lab.charge(f"{array}_{task}")["shard"] for task in range(2, 13)} == {KNOWN_SHARDS}


def test_a_larger_profile_raises_the_charge_of_waiting_jobs(lab):
    script = known_job(lab, "raised.sh")
    job = lab.sbatch("-H", "--gres=salus:1", script)
    assert lab.charge(job)["shard"] == KNOWN_SHARDS
    lab.store_profile(lab.segment(job).signature, 2 * KNOWN_MIB * MIB, 100 * MIB)
    wait_for(lambda: lab.charge(job)["shard"] == 2 * KNOWN_SHARDS, "the higher charge", 45)


REFUSALS = [
    (["--gres=salus:2"], "--gres=salus:2: a job can share only one device per node"),
    (["--gres=salus:1,gpu:1"], "asks for gpu and salus"),
    (["--gres=salus:1", "--gpus=1"], "asks for gpu and salus"),
    (["--gres=shard:1"], "only Salus may set shards; ask for --gres=salus:1"),
    (["--gres=salus:1,shard:1"], "only Salus may set shards"),
    (["--gres=salus:1", "--salus-mem=1300M,300M"], "1677721600 bytes needed, 1476395008 free"),
    (["--gres=salus:1", "--salus-mem=lots"], "--salus-mem=lots: not a size"),
    (["--gres=salus:1", "--salus-time=soon"], "--salus-time=soon: not a time"),
    (["--gres=salus:1", "--salus-class=urgent"], "--salus-class=urgent: no such class"),
    (["--gres=salus:1", "--salus-class=high"], "neither the QOS, the account nor the partition"),
    (["--gres=salus:1", "--salus-profile=a b"], "--salus-profile=a b: not a name"),
]


@pytest.mark.parametrize(("argv", "words"), REFUSALS, ids=[" ".join(argv) for argv, _ in REFUSALS])
def test_an_impossible_request_is_refused_with_advice(lab, argv, words):
    assert words in lab.refusal(*argv, "--wrap", "true")


@pytest.mark.parametrize("command", ["srun", "salloc"])
def test_srun_and_salloc_are_checked_too(lab, command):
    assert "a job can share only one device per node" in lab.refusal("--gres=salus:2", "true", command=command)
    output = lab.run(command, "--gres=salus:1", "true", user="games")
    assert output.returncode == 0, output.stderr
    assert "gets a device of its own" in output.stderr


def test_one_bad_component_refuses_a_heterogeneous_job(lab):
    assert "only one device per node" in lab.refusal("--gres=salus:1", ":", "--gres=salus:2", "true", command="salloc")
    lab.ask("salloc", "--gres=salus:1", ":", "--gres=salus:1", "true", user="games")


def test_options_on_sbatch_lines_reach_the_segment(lab):
    options = ("--gres=salus:1", "--salus-mem=100M,300M", "--salus-time=30", "--salus-class=best-effort")
    script = lab.script("lines.sh", *(f"#SBATCH {option}" for option in options), SLEEP, ": lines")
    segment = lab.segment(lab.sbatch("-H", script))
    assert (segment.persistent_bytes, segment.ephemeral_bytes, segment.shard_count) == (100 * MIB, 300 * MIB, 9)
    assert (segment.time_s, segment.job_class, segment.kind) == (1800, "best-effort", "shared")
    assert "--salus-mem=P[,E]" in lab.ask("sbatch", "--help")


def test_the_signature_depends_on_what_runs_and_not_on_how_it_is_submitted(lab):
    (lab.work / "train.py").write_text("print(1)\n")

    def signature(*argv, script="sig.sh"):
        return lab.segment(
            lab.sbatch("-H", "--gres=salus:1", f"--chdir={lab.work}", *argv, str(lab.work / script))
        ).signature

    lab.script("sig.sh", "#SBATCH --time=10", "# a comment", "python3 train.py")
    first = signature()
    lab.script("sig.sh", "#SBATCH --time=20", "", "# another", "python3 train.py")
    assert signature("-p", "main", "--time", "5") == first
    (lab.work / "train.py").write_text("print(2)\n")
    assert signature() != first
    named = signature("--salus-profile=resnet")
    assert named == "name:resnet"


def test_a_user_cannot_lower_the_charge_of_a_waiting_job_but_root_can(lab):
    job = lab.sbatch("-H", "--gres=salus:1", "--wrap", "true")
    for field in ("gres=salus:1,shard:1", "gres=shard:1", "gres=none", "TresPerNode=gres/shard:1"):
        assert lab.run("scontrol", "update", f"jobid={job}", field, user="games").returncode != 0, field
    assert lab.charge(job) == lab.whole_device
    plain = lab.sbatch("-H", "--wrap", "true")
    assert lab.run("scontrol", "update", f"jobid={plain}", "gres=shard:1", user="games").returncode != 0
    assert lab.run("scontrol", "update", f"jobid={job}", "partition=main", user="games").returncode == 0
    assert lab.run("scontrol", "update", f"jobid={job}", "timelimit=5", user="games").returncode == 0
    assert lab.run("scontrol", "update", f"jobid={plain}", "gres=shard:1").returncode == 0


def test_sacct_shows_the_charge_and_the_segment(lab):
    job = lab.sbatch("--gres=salus:1", "--salus-mem=100M", "--wrap", "true")
    lab.wait_state(job, "COMPLETED")
    wait_for(lambda: "COMPLETED" in lab.ask("sacct", "-X", "-n", "-j", job, "-o", "State"), "sacct")
    output = lab.ask("sacct", "-X", "-n", "-P", "-j", job, "-o", "AllocTRES,AdminComment")
    assert "gres/salus=1" in output
    assert "gres/shard=7" in output
    assert "P=104857600" in output


def test_only_root_and_slurm_user_may_submit_to_the_service(lab):
    ask = (
        "import socket,sys; s=socket.socket(socket.AF_UNIX); s.settimeout(5); s.connect(sys.argv[1]);"
        's.sendall(b\'{"verb":"ping"}\\n\'); print(s.recv(100))'
    )
    path = lab.cluster.plan.admission_socket
    assert b"ok" in eval(lab.ask("python3", "-c", ask, path))
    refused = lab.run("python3", "-c", ask, path, user="games")
    assert "ok" not in refused.stdout


def ask_tcp(lab, request, user, credential=None):
    """Send one request over TCP with the user's own credential."""
    message = json.dumps(request).encode()
    if credential is None:
        options = (f"--socket={lab.cluster.plan.munge_socket}", "--restrict-uid=slurm")
        credential = lab.ask("munge", *options, "--string", digest(message), user=user).strip()
    with socket.create_connection(("127.0.0.1", lab.cluster.plan.ports.admission), timeout=10) as peer:
        peer.sendall(credential.encode() + b" " + message + b"\n")
        return json.loads(peer.makefile().readline()), credential


def test_users_see_their_own_jobs_and_profiles_and_operators_all(lab):
    job = lab.sbatch("-H", "--gres=salus:1", "--salus-profile=mine", "--wrap", "true")
    lab.store_profile("name:mine", MIB, MIB)
    status = {"verb": "status"}
    own, used = ask_tcp(lab, status, "games")
    assert [row["id"] for row in own["jobs"]] == [int(job)]
    assert ask_tcp(lab, status, "news")[0]["jobs"] == []
    assert [row["id"] for row in ask_tcp(lab, status, None)[0]["jobs"]] == [int(job)]
    assert ask_tcp(lab, {"verb": "profiles", "signature": "name:mine"}, "games")[0]["answer"]
    assert ask_tcp(lab, {"verb": "profiles", "signature": "name:mine"}, "news")[0]["answer"] == []
    assert ask_tcp(lab, {"verb": "why", "job": job}, "games")[0]["admission"]["now"]["shards"] == 1
    assert ask_tcp(lab, {"verb": "why", "job": job}, "news")[0]["kind"] == "not_found"
    replayed, _ = ask_tcp(lab, status, "games", credential=used)
    assert replayed["kind"] == "not_permitted"
    borrowed, _ = ask_tcp(lab, {"verb": "profiles"}, "games", credential=ask_tcp(lab, {"verb": "ping"}, "games")[1])
    assert borrowed["kind"] == "not_permitted"


@pytest.mark.skipif(SLURM_ROOT is not None, reason="our commands do not run in another root file system")
def test_status_and_why_work_on_a_login_node_without_database_rights(lab):
    job = lab.sbatch("-H", "--gres=salus:1", "--salus-mem=100M", "--wrap", "true")

    def salus(*argv, user):
        return lab.run(
            lab.cluster.python, "-m", "cli.main", *argv, user=user, PYTHONPATH=str(lab.cluster.plan.shown(ROOT))
        )

    own = salus("status", "--json", user="games")
    assert [row["id"] for row in json.loads(own.stdout)] == [int(job)], own.stderr
    assert json.loads(salus("status", "--json", user="news").stdout) == []
    assert "7 shards" in salus("why", job, user="games").stdout
    assert salus("why", job, user="news").returncode == 3


def test_jobs_and_charges_survive_restarts_of_slurmctld_slurmd_and_salus_admitd(lab):
    script = known_job(lab, "restart.sh")
    running = [lab.sbatch("--gres=salus:1", script) for _ in range(3)]
    for job in running:
        lab.wait_state(job, "RUNNING")
    waiting = lab.sbatch("-H", "--gres=salus:1", script)
    for name, how in (("admitd", signal.SIGKILL), ("slurmctld", signal.SIGTERM), ("slurmctld", signal.SIGKILL),
                      ("slurmd.node1", signal.SIGKILL)):  # fmt: skip
        lab.cluster.stop(name, how)
        lab.cluster.start(name)
    wait_for(lambda: lab.ask("sinfo", "-h", "-N", "-o", "%T").count("unk") == 0, "nodes")
    for job in running:
        assert lab.state(job) == "RUNNING"
        assert lab.charge(job) == {"salus": 1, "shard": KNOWN_SHARDS}
    assert lab.charge(waiting) == {"salus": 1, "shard": KNOWN_SHARDS}
    assert lab.charge(lab.sbatch("-H", "--gres=salus:1", script)) == {"salus": 1, "shard": KNOWN_SHARDS}
