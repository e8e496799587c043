"""The shared values: trust domains, profiles, shortfalls."""

from __future__ import annotations

from nodedaemon.core.types import JobClass, LaneSharing, Shortfall


def test_lane_sharing_names_the_trust_domain() -> None:
    assert LaneSharing.USER.domain("ada", "vision") == "user:ada"
    assert LaneSharing.ACCOUNT.domain("ada", "vision") == "account:vision"
    assert LaneSharing.ALL.domain("ada", "vision") == "all"


def test_a_user_and_an_account_of_the_same_name_are_different_domains() -> None:
    assert LaneSharing.USER.domain("ada", "x") != LaneSharing.ACCOUNT.domain("x", "ada")


def test_a_shortfall_says_what_is_missing_and_what_to_do() -> None:
    assert Shortfall("shards of device d0", 4, 1, "shards").text() == "shards of device d0: 4 shards needed, 1 free"
    answer = Shortfall("memory", 4, 1, advice="wait").text()
    assert answer == "memory: 4 bytes needed, 1 free; wait"


def test_a_better_class_is_a_smaller_number() -> None:
    assert JobClass.HIGH < JobClass.NORMAL < JobClass.BEST_EFFORT
