"""Who runs when under each policy: jobs go in, turns with their times in milliseconds come out."""

from __future__ import annotations

import pytest

from nodedaemon.core import events as ev
from nodedaemon.core.types import MIB, MILLISECOND_NS, DeviceLimits, FaultAction, JobClass
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


#: Two jobs of one user: when each arrives, how long an iteration takes, and how many it runs; then all turns.
TWO_JOBS = {
    "srtf lets a short job overtake at the next boundary": (
        limits("srtf"),
        [(0, 10, 5), (5, 10, 2)],
        ["0 grant 1 in lane 1", "5 revoke 1", "10 grant 2 in lane 2", "30 done 2", "30 grant 1 in lane 1", "70 done 1"],
    ),
    "pack runs every lane with room": (
        limits("pack"),
        [(0, 10, 2), (5, 10, 2)],
        ["0 grant 1 in lane 1", "5 grant 2 in lane 2", "20 done 1", "25 done 2"],
    ),
    # After 40 ms both have had 20 ms. The revoke at 20 ms marks the moment from which the holder is ahead.
    "fair gives equal time to long and short iterations": (
        limits("fair", lanes_max=1),
        [(0, 10, 3), (0, 20, 2)],
        [
            *("0 grant 1 in lane 1", "0 revoke 1 for 2", "10 grant 2 in lane 1", "20 revoke 2 for 1"),
            *("30 grant 1 in lane 1", "40 revoke 1 for 2", "40 grant 2 in lane 1", "40 revoke 2 for 1"),
            *("60 done 2", "60 grant 1 in lane 1", "70 done 1"),
        ],
    ),
    "a hung holder is ended after the deadline": (
        limits("fair", lanes_max=1, hang_timeout_ns=20 * MILLISECOND_NS, on_hang=FaultAction.KILL),
        [(0, 100, 1), (5, 10, 1)],
        ["0 grant 1 in lane 1", "5 revoke 1 for 2", "25 end 1", "100 done 1", "100 grant 2 in lane 1", "110 done 2"],
    ),
}


@pytest.mark.parametrize("title", TWO_JOBS)
def test_two_jobs_of_one_user_take_turns(title: str) -> None:
    device, jobs, expected = TWO_JOBS[title]
    rows = [Row(number, "ada", at_ms, 100, 200, *iterations) for number, (at_ms, *iterations) in enumerate(jobs, 1)]
    assert turns(play(device, *rows)) == expected


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
