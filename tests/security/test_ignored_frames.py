"""Frames that the engine ignores leave no trace: no memory is kept, and the journal replays."""

import pytest

from nodedaemon.wire.messages import HelloFlag
from tests.integration.faults.running import finish, start_running, wait_for_more
from tests.support.attacker import ATTACKER


def attach_without_a_gate(attacker):
    """HELLO(UNGATED): the session never uses a lane."""
    attacker.do("hello", flags=int(HelloFlag.UNGATED))
    attacker.do("want")


def keep_a_lane(attacker):
    """The job gets a second process, so the first one keeps its lane."""
    attacker.do("hello")
    attacker.do("want")
    attacker.do("map_lane")
    attacker.do("hello_of_a_child")


@pytest.mark.parametrize("begin", [attach_without_a_gate, keep_a_lane])
def test_returns_and_requests_that_make_no_sense_take_no_memory_and_poison_no_journal(begin, salusd, crew, rogue):
    daemon = salusd(digest_every=1)
    worker = start_running(crew(daemon), iteration_us=500)
    attacker = rogue(daemon, uid=ATTACKER)
    attacker.do("run")
    begin(attacker)
    attacker.do("lie_leave")
    attacker.do("want")
    attacker.close()
    daemon.wait_for(lambda status: len(status["sessions"]) == 1, "only the honest session is left")
    daemon.kill()
    daemon.start()
    daemon.wait_for(
        lambda status: [one["is_connected"] for one in status["sessions"]] == [True], "the honest session is back"
    )
    wait_for_more(worker, 50)
    finish(worker)
    daemon.wait_for(lambda status: not status["sessions"] and not status["lanes"], "all memory is free")
    assert daemon.status()["devices"][0]["persistent_bytes"] == 0
    assert "journal not" not in daemon.log_tail()
