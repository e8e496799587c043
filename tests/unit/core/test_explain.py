"""Why a session waits: every reason at once, and what a change would lead to."""

from __future__ import annotations

import pytest

from nodedaemon.core import events as ev
from nodedaemon.core import explain
from nodedaemon.core.explain import boundaries_until_served, reasons
from nodedaemon.core.types import MIB, SECOND_NS, DeviceLimits, Domain, JobClass, Shortfall
from tests.support.engine_world import DEVICE, World, make_world

BEN = Domain("user:ben")


def make_two_domains() -> World:
    """Session 1 runs. Session 2 of another domain waits for lane memory."""
    world = make_world(0)
    world.arrive(1, 100, 600)
    world.arrive(2, 100, 500, domain=BEN)
    world.confirm_all()
    world.want(1, 2)
    return world


def whats(world: World, session: int) -> list[tuple[str, int, int]]:
    return [(one.what, one.needed, one.free) for one in reasons(world.engine, session)]


def test_a_session_that_runs_or_wants_nothing_has_no_reason_to_wait() -> None:
    world = make_world(2)
    world.want(1)
    assert reasons(world.engine, 1) == reasons(world.engine, 2) == ()


def test_a_session_of_another_node_is_reported_as_such() -> None:
    assert reasons(make_world(0).engine, 7) == (
        Shortfall("session 7", 1, 0, "sessions", "it is not on this node; see salus status"),
    )


def test_a_lost_and_drained_device_is_a_reason_for_every_session() -> None:
    world = make_world(1)
    world.send(ev.DeviceLost(DEVICE, "Xid 79"))
    world.send(ev.DeviceDrained(DEVICE))
    assert whats(world, 1) == [("device gpu0 is lost (Xid 79)", 1, 0), ("device gpu0 is drained", 1, 0)]


def test_a_stopped_job_is_its_own_reason() -> None:
    world = make_world(1)
    world.send(ev.SessionStopped(1))
    assert whats(world, 1) == [("job 1 is stopped", 1, 0)]


def test_an_arrival_waits_for_bytes_of_lanes_or_of_a_job_that_must_end() -> None:
    world = make_world(2)
    world.want(1, 2)
    world.arrive(3, 600, 100)
    assert whats(world, 3) == [("memory of device gpu0", 600 * MIB, 500 * MIB)]
    world.arrive(4, 900, 300)
    assert whats(world, 4) == [
        ("memory of device gpu0", 900 * MIB, 500 * MIB),
        ("room for the largest iteration on device gpu0", 1200 * MIB, 900 * MIB),
        ("arrivals before it", 1, 0),
    ]


def test_an_arrival_on_a_drained_device_has_no_other_reason() -> None:
    world = make_world(0)
    world.send(ev.DeviceDrained(DEVICE))
    world.arrive(1, 100, 100)
    assert whats(world, 1) == [("device gpu0 is drained", 1, 0)]


def test_a_waiter_has_its_lanes_holder_and_arrivals_as_reasons() -> None:
    world = make_world(2, lanes_max=1)
    world.want(1, 2)
    assert whats(world, 2) == [("lane 1 runs job 1", 1, 0)]
    world.arrive(3, 750, 100)
    assert whats(world, 2) == [("lane 1 runs job 1", 1, 0), ("arrivals that claim memory first", 1, 0)]


def test_a_waiter_of_a_parked_lane_has_the_missing_lane_memory_as_reason() -> None:
    world = make_two_domains()
    assert whats(world, 2) == [("lane memory of device gpu0", 500 * MIB, 200 * MIB)]


def test_a_waiter_of_a_lower_class_has_the_number_of_sessions_before_it_as_reason() -> None:
    world = make_world(0, policy="priority", lanes_max=1)
    world.arrive(1, 50, 200, job_class=JobClass.HIGH)
    world.arrive(2, 50, 200, job_class=JobClass.BEST_EFFORT)
    world.confirm_all()
    world.want(1, 2)
    assert whats(world, 2) == [("sessions of a higher class", 1, 0), ("lane 1 runs job 1", 1, 0)]
    assert whats(world, 1) == []


def test_a_waiter_of_the_same_class_has_no_class_as_reason() -> None:
    world = make_world(2, policy="priority", lanes_max=1)
    world.want(1, 2)
    assert whats(world, 2) == [("lane 1 runs job 1", 1, 0)]


def test_a_policy_that_runs_one_session_at_a_time_is_the_reason() -> None:
    world = make_world(2, policy="fifo")
    world.want(1, 2)
    (reason,) = reasons(world.engine, 2)
    assert (reason.what, reason.advice) == ("turns of device gpu0", "fifo runs one session at a time")


def test_a_what_if_that_starts_the_session_at_once_needs_no_boundary_and_changes_nothing() -> None:
    world = make_world(2, policy="fifo")
    world.want(1, 2)
    before = world.engine.snapshot()
    assert boundaries_until_served(world.engine, 2, [ev.SessionLeft(1)], 5) == 0
    assert world.engine.snapshot() == before


def test_a_waiter_is_served_after_the_boundaries_of_the_sessions_before_it() -> None:
    world = make_world(3, lanes_max=1)
    for session in (1, 2, 3):
        world.want(session)
    assert [boundaries_until_served(world.engine, session, [], 5) for session in (2, 3)] == [1, 2]


def test_a_resumed_device_admits_only_the_sessions_that_arrived() -> None:
    world = make_world(0)
    world.send(ev.DeviceDrained(DEVICE))
    world.arrive(1, 100, 100)
    assert boundaries_until_served(world.engine, 1, [ev.DeviceResumed(DEVICE)], 0) == 0
    assert boundaries_until_served(world.engine, 2, [ev.DeviceResumed(DEVICE)], 0) is None


def test_memory_that_a_what_if_needs_is_opened_and_released_on_the_fork() -> None:
    world = make_two_domains()
    assert boundaries_until_served(world.engine, 2, [], SECOND_NS) == 1
    world.arrive(3, 400, 100)
    assert boundaries_until_served(world.engine, 3, [ev.SessionLeft(1)], SECOND_NS) == 0


def test_a_change_that_the_engine_refuses_changes_nothing() -> None:
    world = make_world(2, policy="fifo")
    world.want(1, 2)
    refused = ev.LimitsChanged(DEVICE, DeviceLimits(1000 * MIB, policy="unknown"))
    assert boundaries_until_served(world.engine, 2, [refused], 5) == boundaries_until_served(world.engine, 2, [], 5)


def test_a_what_if_gives_up_after_its_event_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world(2, lanes_max=1)
    world.want(1, 2)
    monkeypatch.setattr(explain, "WHAT_IF_EVENTS_MAX", 1)
    assert boundaries_until_served(world.engine, 2, [ev.Ticked(DEVICE)], 5) is None
