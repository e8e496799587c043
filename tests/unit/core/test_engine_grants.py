"""Leases, limits, revokes, hand-overs and late answers."""

from __future__ import annotations

import pytest

from nodedaemon.core import commands as cmd
from nodedaemon.core import events as ev
from nodedaemon.core.errors import PeerError
from nodedaemon.core.fairness import ONE_NS
from nodedaemon.core.state.sessions import SessionState
from nodedaemon.core.types import MIB, MILLISECOND_NS, SECOND_NS, DeviceLimits, JobClass
from tests.support.engine_world import DEVICE, World, make_world

HANG_NS = 60 * SECOND_NS


def state_of(world: World, session: int) -> SessionState:
    (device,) = world.engine.snapshot().devices
    return next(one.state for one in device.sessions if one.session == session)


def virtual_ns(world: World, session: int) -> int:
    (device,) = world.engine.snapshot().devices
    return next(one.virtual_service // ONE_NS for one in device.sessions if one.session == session)


def test_the_grant_of_a_single_session_is_a_lease_without_limit() -> None:
    world = make_world(1)
    assert world.want(1) == [cmd.Grant(1, 1, 2)]
    for _ in range(10):
        world.now_ns += SECOND_NS
        assert world.commands_at_boundary(1) == []


def test_a_waiter_bounds_the_lease_and_the_lease_ends_when_the_holder_is_ahead() -> None:
    world = make_world(2, lanes_max=1)
    world.want(1)
    world.now_ns = SECOND_NS
    # A new session starts at the minimum of the active ones: it has no claim to the second before it arrived.
    assert world.want(2) == [cmd.Revoke(1, 2, 2, 3), cmd.WakeAt(DEVICE, 61 * SECOND_NS)]
    assert (virtual_ns(world, 1), virtual_ns(world, 2)) == (SECOND_NS, SECOND_NS)


def test_fair_slack_lets_a_holder_run_ahead_by_that_much() -> None:
    world = make_world(2, lanes_max=1, fair_slack_ns=50 * MILLISECOND_NS)
    world.want(1)
    assert world.want(2) == [cmd.LimitGrant(1, 2, 1000), cmd.WakeAt(DEVICE, 50 * MILLISECOND_NS)]
    world.tick()
    assert world.commands[-2] == cmd.Revoke(1, 2, 2, 3)


def test_weights_stretch_leases() -> None:
    world = World(DeviceLimits(1000 * MIB, lanes_max=1, fair_slack_ns=10 * MILLISECOND_NS))
    world.arrive(1, 50, 200, weight=3)
    world.arrive(2, 50, 200)
    world.confirm_all()
    world.want(1)
    assert world.want(2)[-1] == cmd.WakeAt(DEVICE, 30 * MILLISECOND_NS)


def test_a_direct_hand_over_starts_the_successor_with_its_own_epoch() -> None:
    world = make_world(2, lanes_max=1)
    world.want(1, 2)
    world.now_ns = MILLISECOND_NS
    assert world.commands_at_boundary(1) == [cmd.LimitGrant(2, 3, 1000), cmd.WakeAt(DEVICE, 2 * MILLISECOND_NS)]
    assert (state_of(world, 1), state_of(world, 2)) == (SessionState.WAITING, SessionState.RUNNING)
    (device,) = world.engine.snapshot().devices
    assert [(one.session, one.handover_count, one.epoch) for one in device.sessions] == [(1, 1, None), (2, 0, 3)]


def test_without_a_direct_hand_over_the_engine_grants() -> None:
    world = make_world(2, lanes_max=1)
    world.want(1, 2)
    world.now_ns = MILLISECOND_NS
    assert world.commands_at_boundary(1, hands_over=False)[0] == cmd.Grant(2, 1, 4, 1000)


def test_a_successor_that_left_meanwhile_leaves_the_lane_free() -> None:
    world = make_world(2, lanes_max=1)
    world.want(1, 2)
    world.leave(2)
    assert world.commands_at_boundary(1) == [cmd.Grant(1, 1, 4)]


def make_srtf(*remaining_ns: int, **limits: object) -> World:
    """Sessions 1..n with these remaining times, in one lane under srtf."""
    world = make_world(0, lanes_max=1, policy="srtf", **limits)
    for session, left_ns in enumerate(remaining_ns, start=1):
        world.arrive(session, 50, 200, remaining_ns=left_ns)
    world.confirm_all()
    return world


def test_a_later_revoke_replaces_the_successor() -> None:
    world = make_srtf(300, 200, 100)
    world.want(1)
    assert world.want(2)[0] == cmd.Revoke(1, 2, 2, 3)
    assert world.want(3) == [cmd.Revoke(1, 2, 3, 4)]
    assert world.commands_at_boundary(1)[0] == cmd.LimitGrant(3, 4, 998)


def test_a_hand_over_to_the_successor_named_first_counts_too() -> None:
    world = make_srtf(300, 200, 100)
    world.want(1, 2, 3)
    world.grants[2] = world.grants.pop(1)
    world.grants[2].epoch = 3
    world.send(ev.GrantReturned(1, 2, handed_over=3))
    assert state_of(world, 2) is SessionState.REVOKED, "the session that runs is no longer the first"


def test_a_hand_over_that_was_never_offered_is_refused_and_changes_nothing() -> None:
    world = make_world(2, lanes_max=1)
    world.want(1, 2)
    before = world.engine.snapshot()
    with pytest.raises(PeerError, match="hand-over refused: session 1: epoch 77 was offered to no session"):
        world.send(ev.GrantReturned(1, 2, handed_over=77))
    assert world.engine.snapshot() == before


def test_an_idle_session_that_returns_its_grant_is_idle_and_the_next_runs() -> None:
    world = make_world(2, lanes_max=1)
    world.want(1, 2)
    assert world.commands_at_boundary(1, wants_next=False, hands_over=False) == [cmd.Grant(2, 1, 4)]
    assert state_of(world, 1) is SessionState.IDLE


def test_returns_with_old_epochs_or_without_a_grant_change_nothing() -> None:
    world = make_world(2, lanes_max=1)
    world.want(1)
    before = world.engine.snapshot()
    assert world.send(ev.GrantReturned(1, 1)) == []
    assert world.send(ev.GrantReturned(2, 2)) == []
    assert world.engine.snapshot() == before


def test_negative_counts_are_treated_as_zero() -> None:
    world = make_world(1)
    world.want(1)
    world.grants.pop(1)
    world.send(ev.GrantReturned(1, 2, iteration_count=-5, contended_count=-5, wants_next=False))
    (device,) = world.engine.snapshot().devices
    assert device.sessions[0].iteration_count == 0


def test_a_grant_beside_waiters_carries_the_overtaking_limit() -> None:
    world = make_world(3, lanes_max=1, overtakes_max=5, policy="fifo")
    world.want(2, 3)
    # The iterations promised to the holder use up the limit, so no successor is named: it would overtake session 3.
    assert world.want(1)[0] == cmd.Revoke(2, 2)
    # Session 1 overtakes 3, which began to wait before it: one of five is used up by the start itself.
    assert world.commands_at_boundary(2)[0] == cmd.Grant(1, 1, 3, 4)


def test_lanes_that_run_at_once_divide_the_overtakes_left() -> None:
    world = make_world(3, lanes_max=2, overtakes_max=10, policy="pack")
    world.want(1, 2)
    assert world.want(3)[:2] == [cmd.LimitGrant(1, 3, 5), cmd.LimitGrant(2, 4, 2)]


def test_an_overdue_waiter_runs_before_the_policys_first() -> None:
    world = make_world(2, lanes_max=1, overtakes_max=1, policy="fifo")
    world.want(1)
    assert world.want(2)[0] == cmd.LimitGrant(1, 2, 1)
    world.commands_at_boundary(1)
    assert world.commands_at_boundary(1)[0] == cmd.Grant(2, 1, 3, 1)


def test_an_overdue_waiter_of_another_domain_ignores_the_quantum() -> None:
    world = World(DeviceLimits(1000 * MIB, overtakes_max=1, policy="pack"))
    world.arrive(1, 50, 600)
    world.arrive(2, 50, 600, domain="user:ben")
    world.confirm_all()
    world.want(1)
    assert world.want(2)[0] == cmd.LimitGrant(1, 2, 1)
    world.commands_at_boundary(1)
    assert world.commands_at_boundary(1) == [cmd.ReleaseLane(1, 3)]


def test_under_fifo_only_the_first_runs() -> None:
    world = make_world(2, policy="fifo")
    world.want(2)
    assert world.want(1) == [cmd.Revoke(2, 3), cmd.WakeAt(DEVICE, HANG_NS)]
    assert world.commands_at_boundary(2)[0] == cmd.Grant(1, 1, 4, 500)


def test_under_srtf_a_lease_ends_for_a_session_with_less_time_left() -> None:
    world = make_srtf(10 * SECOND_NS, 6 * SECOND_NS)
    world.want(1)
    world.now_ns = 5 * SECOND_NS
    # By now session 1 has five seconds left, less than the newcomer.
    assert world.want(2) == [cmd.LimitGrant(1, 2, 1000), cmd.WakeAt(DEVICE, 16 * SECOND_NS)]
    world.now_ns = 6 * SECOND_NS
    world.commands_at_boundary(1, wants_next=False)
    (device,) = world.engine.snapshot().devices
    assert [one.remaining_ns for one in device.sessions] == [4 * SECOND_NS, 6 * SECOND_NS]


def test_a_second_report_that_a_lane_is_open_changes_nothing() -> None:
    world = World(DeviceLimits(1000 * MIB, lanes_max=1))
    world.arrive(1, 50, 200)
    world.confirm_all()
    world.want(1)
    world.confirm_all()
    opened = next(one for one in world.commands if isinstance(one, cmd.OpenLane))
    before = world.engine.snapshot()
    assert world.send(ev.LaneOpened(opened.lane, opened.epoch)) == []
    assert world.engine.snapshot() == before


@pytest.mark.parametrize("half_life_ns", [None, SECOND_NS])
def test_under_srtf_a_job_that_is_over_its_time_lets_a_shorter_one_pass(half_life_ns: int | None) -> None:
    world = make_srtf(4 * SECOND_NS, 3 * SECOND_NS, service_half_life_ns=half_life_ns)
    world.want(1)
    world.now_ns = 2 * SECOND_NS
    # Two seconds of its estimate are left. After three more, it is expected to take longer than the newcomer.
    assert cmd.WakeAt(DEVICE, 7 * SECOND_NS) in world.want(2)
    world.tick()
    assert state_of(world, 1) is SessionState.REVOKED
    world.now_ns += 10 * MILLISECOND_NS
    world.commands_at_boundary(1)
    assert [state_of(world, session) for session in (1, 2)] == [SessionState.WAITING, SessionState.RUNNING]


def test_under_pack_lanes_run_side_by_side() -> None:
    world = make_world(2, policy="pack")
    assert world.want(1) == [cmd.Grant(1, 1, 3)]
    assert world.want(2) == [cmd.Grant(2, 2, 4)]


def test_under_priority_no_lower_iteration_starts_while_a_high_session_runs() -> None:
    world = World(DeviceLimits(1000 * MIB, policy="priority"))
    world.arrive(1, 50, 200, job_class=JobClass.BEST_EFFORT)
    world.arrive(2, 50, 200, job_class=JobClass.HIGH)
    world.confirm_all()
    world.want(1)
    assert world.want(2) == [cmd.Grant(2, 2, 4), cmd.Revoke(1, 3), cmd.WakeAt(DEVICE, HANG_NS)]
    assert world.commands_at_boundary(1) == []
    assert world.commands_at_boundary(2, wants_next=False) == [cmd.Grant(1, 1, 5)]


def test_under_fair_a_session_that_is_ahead_waits_until_the_other_lane_has_caught_up() -> None:
    world = World(DeviceLimits(1000 * MIB, lanes_max=2))
    world.arrive(1, 50, 200)
    world.arrive(2, 50, 200, weight=2)
    world.confirm_all()
    world.want(1, 2)
    world.now_ns = 10 * MILLISECOND_NS
    # Both attained 5 ms; for its weight session 2 has had half as much, so session 1 waits for it.
    assert world.commands_at_boundary(1) == [cmd.LimitGrant(2, 4, 500), cmd.WakeAt(DEVICE, 15 * MILLISECOND_NS)]
    command_count = len(world.commands)
    world.tick()
    assert world.commands[command_count] == cmd.Grant(1, 1, 5)


def test_a_device_is_shared_by_busy_lanes() -> None:
    world = make_world(2)
    world.want(1, 2)
    world.now_ns = SECOND_NS
    world.tick(SECOND_NS)
    (device,) = world.engine.snapshot().devices
    assert [one.service_ns for one in device.sessions] == [SECOND_NS // 2, SECOND_NS // 2]


def test_waiting_time_is_counted_until_the_grant() -> None:
    world = make_world(2, lanes_max=1)
    world.want(1, 2)
    world.now_ns = 7 * MILLISECOND_NS
    world.commands_at_boundary(1)
    (device,) = world.engine.snapshot().devices
    assert [one.waited_ns for one in device.sessions] == [0, 7 * MILLISECOND_NS]


def test_service_decays_and_numbers_are_shifted_back_after_64_half_lives() -> None:
    world = make_world(2, lanes_max=1, service_half_life_ns=MILLISECOND_NS)
    world.want(1)
    world.tick(10 * MILLISECOND_NS)
    world.commands_at_boundary(1, wants_next=False)
    early = virtual_ns(world, 1)
    world.want(2)
    world.tick(65 * MILLISECOND_NS)
    assert virtual_ns(world, 1) == early >> 64 == 0
    assert virtual_ns(world, 2) > 0
    (device,) = world.engine.devices()
    assert device.clock.doublings() == 1
    # A session that comes back is lifted to the level of the one that ran all along, whose service is mostly recent.
    world.want(1)
    assert virtual_ns(world, 1) >= virtual_ns(world, 2) >> 1


def test_waiters_keep_their_order_across_a_rebase() -> None:
    world = make_world(3, lanes_max=1, service_half_life_ns=MILLISECOND_NS, policy="fifo")
    for session in (1, 3, 2):
        world.want(session)
    world.tick(64 * MILLISECOND_NS)
    assert world.commands_at_boundary(1, wants_next=False)[0] == cmd.Grant(2, 1, 3, 999)


def test_a_request_of_a_session_that_runs_waits_or_needs_no_grant_changes_nothing() -> None:
    world = make_world(2, lanes_max=1)
    world.arrive(3, 50, 0)
    world.want(1, 2)
    before = world.engine.snapshot()
    for session in (1, 2, 3):
        assert world.want(session) == []
    assert world.engine.snapshot() == before
