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


def overrun(attacker):
    assert attacker.do("overrun", persistent=24)["kind"] == "ALLOW", "nobody needs the bytes yet"


STUCK = "it kept memory that a job placed by Slurm needs"
EXCESS = "it uses more memory than its job was charged for"


@pytest.fixture
def daemon(salusd):
    # OnHang is left at its default.
    return salusd(memory="64M", config="LaneReserve=40M\nHangTimeout=1s\nDomainQuantum=100ms")


@pytest.fixture
def place(daemon, rogue):
    """A function that starts a process of a job that Slurm placed."""

    def start(job="5", uid=VICTIM):
        process = rogue(daemon, uid=uid)
        daemon.hook("job_start", job=job, uid=uid, gpus="0", segment=SEGMENT, wait_ms=50)
        assert daemon.hook("task_start", job=job, uid=uid, pid=process.process.pid)["ok"]
        return process

    return start


def wait_admitted(daemon, job="5"):
    daemon.wait_for(
        lambda status: any(one["job"] == job and one["state"] != "arriving" for one in status["sessions"]),
        "the placed job is admitted",
    )


@pytest.mark.parametrize(("misbehave", "reason"), [(stop, STUCK), (hang, STUCK), (pin, STUCK), (overrun, EXCESS)])
def test_a_placed_job_gets_the_memory_that_a_misbehaving_neighbour_keeps(misbehave, reason, daemon, place, rogue):
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
    wait_admitted(daemon)
    if misbehave is not pin:
        victim.do("want")
        victim.do("map_lane")
    attacker.process.wait(30)
    assert reason in daemon.log_tail()


def test_an_overrun_beyond_the_charge_is_refused_while_a_placed_job_waits(daemon, place, rogue):
    attacker = rogue(daemon, uid=ATTACKER, persistent=18, ephemeral=40)
    assert attacker.do("run")["is_admitted"]
    attacker.do("hello")
    place()
    daemon.wait_for(lambda status: any(one["state"] == "arriving" for one in status["sessions"]), "it waits")
    assert attacker.do("overrun", persistent=20)["kind"] == "DENY"


def test_a_process_that_claims_a_large_lane_of_an_earlier_daemon_takes_nothing_from_a_placed_job(daemon, place, rogue):
    first, second = place("4", ATTACKER), rogue(daemon, uid=ATTACKER)
    assert daemon.hook("task_start", job="4", uid=ATTACKER, pid=second.process.pid)["ok"]
    first.do("hello")
    first.close()
    daemon.wait_for(lambda status: not status["sessions"], "the first process is gone")
    assert second.do("resume_stray", lane=32)["kind"] == "REJECT"
    daemon.wait_for(
        lambda status: any(one["persistent_bytes"] >= 32 << 20 for one in status["sessions"]), "its claim is counted"
    )
    victim = place()
    assert victim.do("hello")["kind"] in ("WELCOME", "NOTICE")
    wait_admitted(daemon)
    second.process.wait(30)
    assert EXCESS in daemon.log_tail()


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
