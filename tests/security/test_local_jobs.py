"""Jobs of `salus run` on a shared machine: a user gets neither the memory, nor the account, nor the turns of others."""

import pytest

from tests.support.attacker import ATTACKERS

ATTACKER, VICTIM = ATTACKERS[:2]


@pytest.fixture
def daemon(salusd):
    return salusd(memory="64M", config="LaneSharing=account")


def test_a_user_cannot_choose_an_account_or_class_high_but_root_can(daemon, rogue):
    for fields in ({"account": "physics"}, {"account": "root"}, {"class": "high"}):
        answer = rogue(daemon, uid=ATTACKER).do("run", **fields)
        assert (answer["ok"], answer["kind"]) == (False, "not_permitted"), fields
        assert "admins only" in answer["why"]
    assert daemon.status()["sessions"] == []
    assert rogue(daemon).do("run", account="physics", **{"class": "high"})["ok"]


def test_local_jobs_share_lane_memory_with_no_other_user_whatever_account_they_name(daemon, rogue):
    # An ordinary job has the account `local`, named or not.
    for uid, fields in ((VICTIM, {}), (ATTACKER, {"account": "local"})):
        session = rogue(daemon, uid=uid)
        assert session.do("run", **fields)["ok"]
        assert session.do("hello")["kind"] == "WELCOME"
        session.do("want")
        session.do("map_lane")
    domains = {lane["domain"] for lane in daemon.status()["lanes"]}
    assert domains == {f"user:{VICTIM}", f"user:{ATTACKER}"}
