"""Which lanes get bytes and which release them: jobs go in, decisions with their times in milliseconds come out."""

from __future__ import annotations

from nodedaemon.core import events as ev
from nodedaemon.core.types import MIB, MILLISECOND_NS, DeviceLimits
from tests.support.engine_table import Row, play, turns
from tests.support.engine_world import DEVICE


def limits(**other: object) -> DeviceLimits:
    return DeviceLimits(1000 * MIB, **other)  # type: ignore[arg-type]


def test_a_large_job_waits_for_a_boundary_and_not_until_another_job_ends() -> None:
    decisions = play(
        limits(),
        Row(1, "ada", 0, persistent_mib=100, ephemeral_mib=300, iteration_ms=50, iteration_count=3),
        Row(2, "ben", 0, persistent_mib=100, ephemeral_mib=300, iteration_ms=50, iteration_count=3),
        Row(3, "cyd", 20, persistent_mib=500, ephemeral_mib=100, iteration_ms=10, iteration_count=1),
    )
    at_50 = [one for one in decisions if one.startswith(("20 ", "50 "))]
    assert at_50 == [
        "20 revoke 1",
        "50 release lane 1",
        "50 revoke 2",
        "50 admit 3",
        "50 bind 3 to lane 3",
        "50 grant 2 in lane 2",
    ]


def test_two_domains_take_turns_by_the_quantum() -> None:
    decisions = play(
        limits(domain_quantum_ns=30 * MILLISECOND_NS),
        Row(1, "ada", 0, 100, 600, iteration_ms=10, iteration_count=6),
        Row(2, "ben", 0, 100, 600, iteration_ms=10, iteration_count=3),
    )
    assert [one for one in decisions if " lane " in one and " bind " not in one] == [
        "0 open lane 1 of ada, 600 MiB",
        "0 grant 1 in lane 1",
        "30 release lane 1",
        "30 open lane 2 of ben, 600 MiB",
        "30 grant 2 in lane 2",
        "60 release lane 2",
        "60 close lane 2",
        "60 open lane 1 of ada, 600 MiB",
        "60 grant 1 in lane 1",
        "90 release lane 1",
        "90 close lane 1",
    ]


def test_a_waiter_gets_a_lane_of_its_own_when_bytes_become_free() -> None:
    decisions = play(
        limits(policy="pack"),
        Row(1, "ada", 0, 100, 300, iteration_ms=40, iteration_count=3),
        Row(2, "ben", 0, 400, 50, iteration_ms=10, iteration_count=2),
        Row(3, "ada", 0, 50, 200, iteration_ms=10, iteration_count=2),
    )
    assert decisions[8:16] == [
        "0 admit 3",
        "0 bind 3 to lane 1",
        "20 done 2",
        "20 release lane 2",
        "20 bind 3 to lane 3",
        "20 open lane 3 of ada, 200 MiB",
        "20 close lane 2",
        "20 grant 3 in lane 3",
    ]


def test_a_stopped_job_delays_only_its_named_successor() -> None:
    decisions = play(
        limits(lanes_max=2),
        Row(1, "ada", 0, 100, 200, iteration_ms=10, iteration_count=2),
        Row(2, "ada", 0, 100, 200, iteration_ms=10, iteration_count=4),
        Row(3, "ada", 0, 50, 200, iteration_ms=10, iteration_count=1),
        happenings={4: [ev.SessionStopped(1)], 100: [ev.SessionContinued(1)]},
    )
    assert turns(decisions) == [
        "0 grant 1 in lane 1",
        "0 grant 2 in lane 2",
        "0 revoke 1 for 3",
        "0 revoke 2",
        "10 grant 2 in lane 2",
        "40 done 2",
        "110 grant 3 in lane 1",
        "120 done 3",
        "120 grant 1 in lane 3",
        "130 done 1",
    ]


def decisions_around_an_outage(start: ev.Event, end: ev.Event) -> list[str]:
    """Job 1 runs when the outage begins at 2 ms, and job 2 arrives meanwhile. The outage ends at 40 ms."""
    decisions = play(
        limits(),
        Row(1, "ada", 0, 100, 200, iteration_ms=10, iteration_count=2),
        Row(2, "ada", 5, 100, 200, iteration_ms=10, iteration_count=1),
        happenings={2: [start], 40: [end]},
    )
    return decisions[4:-3]


def test_a_drained_device_finishes_its_jobs_and_admits_the_next_when_it_is_resumed() -> None:
    assert decisions_around_an_outage(ev.DeviceDrained(DEVICE), ev.DeviceResumed(DEVICE)) == [
        "20 done 1",
        "20 release lane 1",
        "20 close lane 1",
        "40 admit 2",
        "40 bind 2 to lane 2",
        "40 open lane 2 of ada, 200 MiB",
        "40 grant 2 in lane 2",
    ]


def test_a_lost_device_releases_lanes_only_after_it_has_recovered() -> None:
    assert decisions_around_an_outage(ev.DeviceLost(DEVICE, "Xid 79"), ev.DeviceRecovered(DEVICE)) == [
        "20 done 1",
        "40 admit 2",
        "40 bind 2 to lane 2",
        "40 open lane 2 of ada, 200 MiB",
        "40 release lane 1",
        "40 close lane 1",
        "40 grant 2 in lane 2",
    ]


def test_the_jobs_of_a_sweep_by_one_user_take_turns_in_one_lane() -> None:
    rows = [Row(number, "ada", 0, 150, 400, iteration_ms=10, iteration_count=1) for number in (1, 2, 3, 4)]
    decisions = play(limits(lane_reserve_bytes=400 * MIB), *rows)
    assert [one for one in decisions if " done " in one] == ["10 done 1", "20 done 2", "30 done 3", "40 done 4"]
    assert sum(" open " in one for one in decisions) == 1
