"""Whose turn it is under each policy: jobs in, turns out, by milliseconds."""

from __future__ import annotations

from nodedaemon.core import events as ev
from nodedaemon.core.types import MIB, MILLISECOND_NS, DeviceLimits, JobClass, OnHang
from tests.support.engine_table import Row, play, turns
from tests.support.engine_world import DEVICE


def limits(policy: str, **other: object) -> DeviceLimits:
    return DeviceLimits(1000 * MIB, policy=policy, **other)  # type: ignore[arg-type]


def test_fifo_runs_the_first_job_to_its_end_beside_an_open_second_lane() -> None:
    decisions = play(
        limits("fifo"),
        Row(1, "ada", at_ms=0, persistent_mib=100, ephemeral_mib=200, iteration_ms=10, iteration_count=3),
        Row(2, "ada", at_ms=5, persistent_mib=100, ephemeral_mib=200, iteration_ms=10, iteration_count=2),
    )
    assert decisions == [
        "0 admit 1",
        "0 bind 1 to lane 1",
        "0 open lane 1 of ada, 200 MiB",
        "0 grant 1 in lane 1",
        "5 admit 2",
        "5 bind 2 to lane 2",
        "5 open lane 2 of ada, 200 MiB",
        "30 done 1",
        "30 grant 2 in lane 2",
        "30 release lane 1",
        "30 close lane 1",
        "50 done 2",
        "50 release lane 2",
        "50 close lane 2",
    ]


def test_srtf_lets_a_short_job_overtake_at_the_next_boundary() -> None:
    decisions = play(
        limits("srtf"),
        Row(1, "ada", 0, 100, 200, iteration_ms=10, iteration_count=5),
        Row(2, "ada", 5, 100, 200, iteration_ms=10, iteration_count=2),
    )
    assert turns(decisions) == [
        "0 grant 1 in lane 1",
        "5 revoke 1",
        "10 grant 2 in lane 2",
        "30 done 2",
        "30 grant 1 in lane 1",
        "70 done 1",
    ]


def test_pack_runs_every_lane_with_room() -> None:
    decisions = play(
        limits("pack"),
        Row(1, "ada", 0, 100, 200, iteration_ms=10, iteration_count=2),
        Row(2, "ada", 5, 100, 200, iteration_ms=10, iteration_count=2),
    )
    assert turns(decisions) == ["0 grant 1 in lane 1", "5 grant 2 in lane 2", "20 done 1", "25 done 2"]


def test_fair_gives_equal_time_to_long_and_short_iterations() -> None:
    decisions = play(
        limits("fair", lanes_max=1),
        Row(1, "ada", 0, 100, 200, iteration_ms=10, iteration_count=3),
        Row(2, "ada", 0, 100, 200, iteration_ms=20, iteration_count=2),
    )
    # After 40 ms both have had 20; the revoke at 20 marks the moment from which the holder is ahead.
    assert turns(decisions) == [
        "0 grant 1 in lane 1",
        "0 revoke 1 for 2",
        "10 grant 2 in lane 1",
        "20 revoke 2 for 1",
        "30 grant 1 in lane 1",
        "40 revoke 1 for 2",
        "40 grant 2 in lane 1",
        "40 revoke 2 for 1",
        "60 done 2",
        "60 grant 1 in lane 1",
        "70 done 1",
    ]


def test_fair_gives_a_double_weight_two_iterations_for_one() -> None:
    decisions = play(
        limits("fair", lanes_max=1),
        Row(1, "ada", 0, 100, 200, iteration_ms=10, iteration_count=4, weight=2),
        Row(2, "ada", 0, 100, 200, iteration_ms=10, iteration_count=2),
    )
    grants = [one for one in decisions if " grant " in one]
    assert grants == [
        "0 grant 1 in lane 1",
        "10 grant 2 in lane 1",
        "20 grant 1 in lane 1",
        "30 grant 2 in lane 1",
        "40 grant 1 in lane 1",
    ]


def test_priority_waits_for_the_iteration_under_way_and_then_runs_alone() -> None:
    decisions = play(
        limits("priority"),
        Row(1, "ada", 0, 100, 600, iteration_ms=10, iteration_count=3),
        Row(2, "ben", 15, 100, 600, iteration_ms=5, iteration_count=2, job_class=JobClass.HIGH),
    )
    assert decisions[4:] == [
        "15 admit 2",
        "15 bind 2 to lane 2",
        "15 revoke 1",
        "20 release lane 1",
        "20 open lane 2 of ben, 600 MiB",
        "20 grant 2 in lane 2",
        "30 done 2",
        "30 release lane 2",
        "30 close lane 2",
        "30 open lane 1 of ada, 600 MiB",
        "30 grant 1 in lane 1",
        "40 done 1",
        "40 release lane 1",
        "40 close lane 1",
    ]


def test_a_long_job_under_srtf_runs_after_it_was_overtaken_as_often_as_allowed() -> None:
    decisions = play(
        limits("srtf", lanes_max=1, overtakes_max=3),
        Row(1, "ada", 0, 100, 200, iteration_ms=10, iteration_count=20),
        Row(2, "ada", 0, 100, 200, iteration_ms=10, iteration_count=12),
    )
    grants_of_long = [one.split()[0] for one in decisions if " grant 1 " in one]
    assert grants_of_long == ["0", "50", "100", "150"], "three iterations and the one under way pass before each turn"


def test_a_change_of_policy_takes_effect_at_the_next_boundary() -> None:
    decisions = play(
        limits("fifo", lanes_max=1),
        Row(1, "ada", 0, 100, 200, iteration_ms=10, iteration_count=4),
        Row(2, "ada", 0, 100, 200, iteration_ms=10, iteration_count=1),
        happenings={15: [ev.LimitsChanged(DEVICE, limits("srtf", lanes_max=1))]},
    )
    assert turns(decisions) == [
        "0 grant 1 in lane 1",
        "15 revoke 1 for 2",
        "20 grant 2 in lane 1",
        "30 done 2",
        "30 grant 1 in lane 1",
        "50 done 1",
    ]


def test_a_hung_holder_is_ended_after_the_deadline() -> None:
    decisions = play(
        limits("fair", lanes_max=1, hang_timeout_ns=20 * MILLISECOND_NS, on_hang=OnHang.KILL),
        Row(1, "ada", 0, 100, 200, iteration_ms=100, iteration_count=1),
        Row(2, "ada", 5, 100, 200, iteration_ms=10, iteration_count=1),
    )
    assert turns(decisions) == [
        "0 grant 1 in lane 1",
        "5 revoke 1 for 2",
        "25 end 1",
        "100 done 1",
        "100 grant 2 in lane 1",
        "110 done 2",
    ]
