"""Processes of Slurm jobs that no Prolog announced: only a job with a share of a device gets a session."""

import contextlib

import pytest

from nodedaemon.core.types import MIB
from nodedaemon.wire import framing
from nodedaemon.wire.messages import Hello, Notice, Reject, Welcome
from tests.support.lab import wait_for

MEMORY = "--salus-mem=150M,50M"
NODE = "node1"

#: Waits for a file, says hello, and prints each frame until there is a decision.
PROGRAM = """
import os, socket, sys, time
path, hello, start = sys.argv[1:]
while not os.path.exists(start):
    time.sleep(0.05)
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
    daemon.connect(path)
    daemon.send(bytes.fromhex(hello))
    while frame := daemon.recv(65536):
        print(frame.hex(), flush=True)
        if frame[6:8] in (bytes.fromhex(kind) for kind in ("%s", "%s")):
            break
"""


class Caller:
    """A job on one node that says hello when the test allows it, and what salusd answered."""

    def __init__(self, lab, *argv, user="games"):
        self.lab = lab
        self.output, self.may_start = lab.work / f"frames-{user}.txt", lab.work / f"start-{user}"
        self.output.unlink(missing_ok=True)
        self.may_start.unlink(missing_ok=True)
        kinds = [framing.encode(message)[6:8].hex() for message in (Reject("."), Welcome(session=1))]
        program = lab.work / "say_hello.py"
        program.write_text(PROGRAM % tuple(kinds))
        program.chmod(0o644)
        words = [
            lab.cluster.python, str(program), str(lab.cluster.plan.path("run", NODE, "salusd.sock")),
            framing.encode(Hello()).hex(), str(self.may_start),
        ]  # fmt: skip
        self.job = lab.sbatch(*argv, "-w", NODE, "--wrap", " ".join(words), user=user, output=str(self.output))
        lab.wait_state(self.job, "RUNNING")

    def start(self):
        self.may_start.touch()

    def frames(self):
        lines = self.output.read_text().splitlines() if self.output.exists() else []
        return [framing.decode(bytes.fromhex(line)) for line in lines]

    def wait_frame(self, *kinds):
        def find():
            return next((frame for frame in self.frames() if isinstance(frame, kinds)), None)

        return wait_for(find, lambda: f"{kinds}: {self.frames()}: {self.lab.daemon_log(NODE)}", 60)


@contextlib.contextmanager
def without_prolog(lab):
    """The Prolog does nothing: it leaves no file and sends no request."""
    script = lab.cluster.plan.path("etc", "prolog")
    text = script.read_text()
    script.write_text("#!/bin/sh\n")
    try:
        yield
    finally:
        script.write_text(text)


@pytest.fixture
def neighbour(lab):
    """A good job on the node."""
    job = lab.sbatch("--gres=salus:1", MEMORY, "-w", NODE, "--wrap", "exec sleep 302")
    wait_for(lambda: lab.sessions(job), f"salusd to know job {job}")
    return job


def test_a_job_without_a_share_of_a_device_is_refused(lab, neighbour):
    before = lab.node_status(NODE)["devices"]
    plain = Caller(lab, user="news")
    plain.start()
    assert "Slurm gave it no share of a device" in plain.wait_frame(Reject, Welcome).text
    lab.wait_state(plain.job, "COMPLETED")
    status = lab.node_status(NODE)
    assert {session["job"] for session in status["sessions"]} == {neighbour}
    fields = ("persistent_bytes", "lane_bytes", "session_count")
    assert [[one[field] for field in fields] for one in status["devices"]] == [
        [one[field] for field in fields] for one in before
    ]
    assert not lab.cluster.plan.path("run", NODE, "jobs", plain.job).exists()


def test_a_job_whose_prolog_was_lost_gets_the_share_that_slurmctld_confirms(lab):
    with without_prolog(lab):
        caller = Caller(lab, "--gres=salus:1", MEMORY)
    caller.start()
    assert caller.wait_frame(Reject, Welcome).persistent_bytes == 150 * MIB
    lab.wait_state(caller.job, "COMPLETED")
    wait_for(lambda: not lab.sessions(caller.job), "its session to end")


def test_a_job_that_slurmctld_cannot_confirm_yet_waits_and_holds_nothing(lab):
    with without_prolog(lab):
        caller = Caller(lab, "--gres=salus:1", MEMORY)
    lab.cluster.stop("slurmctld")
    try:
        caller.start()
        assert "Slurm" in caller.wait_frame(Notice).text
        assert lab.node_status(NODE)["sessions"] == []
    finally:
        lab.cluster.start("slurmctld")
    assert caller.wait_frame(Reject, Welcome).persistent_bytes == 150 * MIB
