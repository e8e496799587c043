"""A job that Slurm placed runs, whatever the jobs of other users on the device do."""

import pytest

from nodedaemon.wire.messages import HelloFlag
from tests.support.attacker import ATTACKER

VICTIM = 65534
SEGMENT = "salus:1;P=8388608;E=41943040;K=shared"
#: Two such jobs fit the device only if they use the same lane memory in turn.
SIZES = {"persistent": 4, "ephemeral": 40}


def stop(attacker):
    attacker.send("stop_self")


def hang(attacker):
    """It never returns its grant."""


def pin(attacker):
    attacker.do("hello_of_a_child")


@pytest.fixture
def daemon(salusd):
    # OnHang is left at its default.
    return salusd(memory="64M", config="LaneReserve=40M\nHangTimeout=1s\nDomainQuantum=100ms")


@pytest.fixture
def place(daemon, rogue):
    """A function that starts a process of a job that Slurm placed."""

    def start(job="5"):
        victim = rogue(daemon, uid=VICTIM)
        daemon.hook("job_start", job=job, uid=VICTIM, gpus="0", segment=SEGMENT, wait_ms=50)
        assert daemon.hook("task_start", job=job, uid=VICTIM, pid=victim.process.pid)["ok"]
        return victim

    return start


@pytest.mark.parametrize("misbehave", [stop, hang, pin])
def test_a_placed_job_gets_the_memory_that_a_misbehaving_neighbour_keeps(misbehave, daemon, place, rogue):
    attacker = rogue(daemon, uid=ATTACKER, **SIZES)
    assert attacker.do("run")["is_admitted"]
    attacker.do("hello")
    attacker.do("want")
    attacker.do("map_lane")
    misbehave(attacker)
    if misbehave is pin:
        daemon.wait_for(lambda status: len(status["sessions"]) == 2, "the second process is attached")
    victim = place()
    assert victim.do("hello")["kind"] in ("WELCOME", "NOTICE")
    daemon.wait_for(
        lambda status: any(one["job"] == "5" and one["state"] != "arriving" for one in status["sessions"]),
        "the placed job is admitted",
    )
    if misbehave is not pin:
        victim.do("want")
        victim.do("map_lane")
    attacker.process.wait(30)
    assert "it kept memory that a job placed by Slurm needs" in daemon.story()


def test_a_session_without_a_gate_gets_only_what_its_job_was_charged_for(daemon, place, rogue):
    attacker = rogue(daemon, uid=ATTACKER, **SIZES)
    assert attacker.do("run")["is_admitted"]
    attacker.do("hello", flags=int(HelloFlag.UNGATED))
    attacker.do("want")
    assert daemon.status()["devices"][0]["persistent_bytes"] == 4 << 20, "the lane reserve is not for one job"
    victim = place()
    assert victim.do("hello")["kind"] in ("WELCOME", "NOTICE")
    victim.do("want")
    assert victim.do("map_lane")["bytes"] == 40 << 20


def test_a_job_whose_sessions_salus_ended_repeatedly_may_not_attach_again(daemon, place, rogue):
    attackers = [rogue(daemon, uid=ATTACKER, **SIZES) for _ in range(4)]
    job = attackers[0].do("run")["job"]
    # Register all of them first: a local job ends as soon as none of its processes lives.
    for attacker in attackers:
        assert daemon.hook("task_start", job=job, uid=ATTACKER, pid=attacker.process.pid)["ok"]
    for number, attacker in enumerate(attackers[:3]):
        attacker.do("hello")
        attacker.do("want")
        attacker.do("map_lane")
        victim = place(str(10 + number))
        victim.do("hello")
        victim.do("want")
        attacker.process.wait(30)
        victim.do("map_lane")
        victim.close()
        daemon.hook("job_end", job=str(10 + number), uid=VICTIM)
        daemon.wait_for(lambda status: not status["sessions"], "both sessions are gone")
    answer = attackers[3].do("hello")
    assert (answer["kind"], "had to end 3 sessions" in answer["text"]) == ("REJECT", True)
