"""Stopped, hung, ungated and overrunning sessions: what happens to them and to the sessions beside them."""

from __future__ import annotations

import pytest

from nodedaemon.core import commands as cmd
from nodedaemon.core import events as ev
from nodedaemon.core.state.sessions import SessionState
from nodedaemon.core.types import (
    MIB,
    MILLISECOND_NS,
    SECOND_NS,
    DeviceLimits,
    Domain,
    FaultAction,
    JobClass,
    Shortfall,
)
from tests.support.engine_world import DEVICE, World, make_world

ADA, BEN = Domain("user:ada"), Domain("user:ben")
#: What the limits say, and the command that follows.
ACTIONS = [(FaultAction.WARN, cmd.WarnSession), (FaultAction.KILL, cmd.EndSession)]
ADVICE = "use a smaller batch, or run once alone so that the profile is measured again"


def states(world: World) -> dict[int, tuple[SessionState, int | None]]:
    (device,) = world.engine.snapshot().devices
    return {one.session: (one.state, one.lane) for one in device.sessions}


# Stopped


def test_sessions_behind_a_stopped_holder_move_to_a_lane_that_fits() -> None:
    world = make_world(3, lanes_max=2)
    world.want(1)
    assert states(world)[3] == (SessionState.IDLE, 1)
    assert world.send(ev.SessionStopped(1)) == [cmd.BindSession(3, 2)]
    assert world.want(3) == [cmd.Grant(3, 2, 4)]


def test_a_session_that_fits_beside_a_stopped_holder_leaves_the_lane_of_one_that_does_not() -> None:
    world = World(DeviceLimits(1000 * MIB, domain_quantum_ns=0))
    for session, ephemeral_mib, domain in (
        (1, 600, "user:ada"),
        (4, 200, "user:ben"),
        (2, 600, "user:ada"),
        (3, 200, "user:ada"),
    ):
        world.arrive(session, 50, ephemeral_mib, domain=Domain(domain))
        world.confirm_all()
    world.want(1)
    world.send(ev.SessionStopped(1))
    shared = {one.session: one.lane for one in world.engine.snapshot().devices[0].sessions}
    assert shared[2] == shared[3], "no bytes are free, so both wait for the same lane"
    world.want(3)
    world.confirm_all()
    lanes = {lane.lane: lane for lane in world.engine.snapshot().devices[0].lanes}
    assert lanes[world.grants[3].lane].sessions == (3,)


def test_sessions_behind_a_stopped_holder_that_fit_nowhere_wait_until_it_continues() -> None:
    world = World(DeviceLimits(1000 * MIB, lanes_max=1))
    world.arrive(1, 100, 200)
    world.arrive(2, 100, 700)
    world.confirm_all()
    world.want(1, 2)
    assert world.send(ev.SessionStopped(1)) == [cmd.BindSession(2, 2)]
    assert world.send(ev.SessionContinued(1)) == []
    assert world.commands_at_boundary(1) == [cmd.BindSession(1, 2), cmd.ReleaseLane(1, 3)]
    world.confirm_all()
    assert set(world.grants) == {2}


def test_a_stopped_job_stops_no_session_in_other_lanes() -> None:
    world = make_world(3, lanes_max=2)
    world.want(1, 2, 3)
    world.send(ev.SessionStopped(1))
    world.now_ns = 10 * MILLISECOND_NS
    # Session 3 was named as successor of the stopped session and stays. Session 2 is ahead of it but continues to run.
    assert states(world)[3] == (SessionState.WAITING, 1)
    assert world.commands_at_boundary(2) == [cmd.Grant(2, 2, 6, 499)]


@pytest.mark.parametrize("policy", ["fifo", "srtf", "pack", "fair", "priority"])
def test_under_every_policy_others_run_beside_a_stopped_job(policy: str) -> None:
    world = make_world(3, lanes_max=2, policy=policy)
    world.want(1, 2, 3)
    world.send(ev.SessionStopped(1))
    for _ in range(5):
        world.wait(MILLISECOND_NS)
        for session in [one for one in world.grants if one != 1]:
            world.boundary(session)
        assert [one for one in world.grants if one != 1], "a session waits for a stopped job"


def test_a_stopped_holder_gets_no_service() -> None:
    world = make_world(1)
    world.want(1)
    world.send(ev.SessionStopped(1))
    world.now_ns = SECOND_NS
    world.send(ev.SessionContinued(1))
    world.tick(3 * SECOND_NS)
    (device,) = world.engine.snapshot().devices
    assert device.sessions[0].service_ns == 2 * SECOND_NS


def test_a_stopped_waiter_is_skipped_and_is_the_youngest_when_it_continues() -> None:
    world = make_world(3, lanes_max=1, policy="pack")
    world.want(1, 2, 3)
    assert world.send(ev.SessionStopped(2)) == []
    assert world.send(ev.SessionStopped(2)) == []
    assert world.commands_at_boundary(1, wants_next=False) == [cmd.Grant(3, 1, 3)]
    assert world.send(ev.SessionContinued(2)) == [cmd.Revoke(3, 3, 2, 4)]
    assert world.send(ev.SessionContinued(2)) == []


def test_a_session_that_is_stopped_before_it_wants_a_grant_is_served_when_it_continues() -> None:
    world = make_world(1)
    world.send(ev.SessionStopped(1))
    assert world.want(1) == []
    assert world.send(ev.SessionContinued(1)) == [cmd.Grant(1, 1, 2)]


def test_a_named_successor_that_is_stopped_is_withdrawn() -> None:
    world = make_world(2, lanes_max=1)
    world.want(1, 2)
    assert world.send(ev.SessionStopped(2)) == [cmd.Revoke(1, 2)]
    assert world.commands_at_boundary(1) == [cmd.Grant(1, 1, 4)]


def test_a_successor_that_is_stopped_as_it_starts_keeps_its_lane_and_the_others_move() -> None:
    world = make_world(2, lanes_max=1)
    world.want(1, 2)
    offer = world.grants[1].successor
    world.send(ev.SessionStopped(2))
    world.grants[1].successor = offer
    assert world.commands_at_boundary(1) == [cmd.BindSession(1, 2)]
    assert states(world) == {1: (SessionState.WAITING, 2), 2: (SessionState.RUNNING, 1)}
    # At most one lane may be open, so session 1 waits. It is not bound to the lane that the stopped session holds.
    world.leave(2)
    world.confirm_all()
    assert set(world.grants) == {1}


def test_an_arrival_that_needs_the_bytes_of_a_stopped_holder_delays_no_other_session() -> None:
    world = make_world(2, lanes_max=2)
    world.want(1)
    world.send(ev.SessionStopped(1))
    assert world.arrive(3, 650, 100) == []
    assert world.want(2) == [cmd.Grant(2, 2, 4)]


# Hung


@pytest.mark.parametrize(("on_hang", "last"), ACTIONS)
def test_a_holder_without_a_boundary_is_reported_once_and_warned_or_ended(on_hang: FaultAction, last: type) -> None:
    world = make_world(2, lanes_max=1, hang_timeout_ns=5 * MILLISECOND_NS, on_hang=on_hang)
    world.want(1)
    world.now_ns = MILLISECOND_NS
    assert world.want(2) == [cmd.Revoke(1, 2, 2, 3), cmd.WakeAt(DEVICE, 6 * MILLISECOND_NS)]
    command_count = len(world.commands)
    world.tick()
    assert world.commands[command_count:] == [
        cmd.ReportOverdue(1, "1", 5 * MILLISECOND_NS),
        last(1, "no boundary for 5000000 ns after a revoke while others wait"),
    ]
    world.tick(SECOND_NS)
    assert len(world.commands) == command_count + 2


def test_sessions_behind_a_hung_holder_move_and_other_lanes_continue() -> None:
    world = make_world(3, lanes_max=1, hang_timeout_ns=MILLISECOND_NS)
    world.want(1, 2, 3)
    command_count = len(world.commands)
    world.tick()
    # Session 2 was named as successor. It may be running already, so it stays.
    assert world.commands[command_count + 2 :] == [cmd.BindSession(3, 2)]
    world = make_world(3, lanes_max=2, hang_timeout_ns=MILLISECOND_NS)
    world.want(1, 2, 3)
    world.now_ns = MILLISECOND_NS // 2
    assert world.commands_at_boundary(2) == [], "until then it waits for the session behind the hung holder"
    world.tick()
    assert 2 in world.grants


def test_a_hung_holder_that_reaches_a_boundary_later_is_treated_like_any_other() -> None:
    world = make_world(2, lanes_max=1, hang_timeout_ns=MILLISECOND_NS)
    world.want(1, 2)
    world.tick()
    world.now_ns = SECOND_NS
    assert world.commands_at_boundary(1)[0] == cmd.LimitGrant(2, 3, 1000)
    assert states(world) == {1: (SessionState.WAITING, 1), 2: (SessionState.RUNNING, 1)}


def test_a_lost_device_reports_no_hang() -> None:
    world = make_world(2, lanes_max=1, hang_timeout_ns=MILLISECOND_NS)
    world.want(1, 2)
    world.send(ev.DeviceLost(DEVICE, "Xid 79"))
    command_count = len(world.commands)
    world.tick(SECOND_NS)
    assert world.commands[command_count:] == []


# Ungated


def test_an_ungated_holder_keeps_its_lane_and_the_other_sessions_move() -> None:
    world = make_world(3, lanes_max=2)
    world.want(1)
    assert world.send(ev.SessionUngated(1)) == [cmd.BindSession(3, 2), cmd.Grant(1, 1, 4)]
    assert world.send(ev.SessionUngated(1)) == []
    assert world.send(ev.GrantReturned(1, 4)) == [], "it is no longer gated"
    (device,) = world.engine.snapshot().devices
    assert [(one.lane, one.is_pinned) for one in device.lanes] == [(1, True), (2, False)]


def test_a_pinned_lane_ends_with_its_session() -> None:
    world = make_world(1)
    world.want(1)
    world.send(ev.SessionUngated(1))
    world.leave(1)
    world.confirm_all()
    (device,) = world.engine.snapshot().devices
    assert (device.lanes, device.held_bytes, device.persistent_bytes) == ((), 0, 0)


def test_a_pinned_lane_does_not_count_towards_max_lanes() -> None:
    world = make_world(1, lanes_max=1)
    world.want(1)
    world.send(ev.SessionUngated(1))
    assert world.arrive(2, 50, 200)[-1] == cmd.OpenLane(2, DEVICE, ADA, 200 * MIB, 4)


def test_a_revoked_holder_without_a_successor_is_ungated_at_once() -> None:
    world = World(DeviceLimits(1000 * MIB, domain_quantum_ns=0, lanes_max=1))
    world.arrive(1, 100, 600)
    world.arrive(2, 100, 200, domain=BEN)
    world.confirm_all()
    world.want(1)
    assert world.want(2)[0] == cmd.Revoke(1, 2)
    assert world.send(ev.SessionUngated(1))[0] == cmd.Grant(1, 1, 3)
    assert states(world)[1] == (SessionState.RUNNING, 1)


def test_a_holder_that_may_have_handed_over_is_ungated_after_its_return() -> None:
    world = make_world(2, lanes_max=1)
    world.want(1, 2)
    # If it were granted again at once, it and the successor that it may have started would run in one lane.
    assert world.send(ev.SessionUngated(1)) == []
    assert world.commands_at_boundary(1)[0] == cmd.Revoke(2, 3)
    assert world.commands_at_boundary(2)[:2] == [cmd.BindSession(2, 2), cmd.Grant(1, 1, 4)]
    world.confirm_all()
    assert set(world.grants) == {1, 2}


@pytest.mark.parametrize("policy", ["fifo", "pack", "fair", "priority"])
def test_an_ungated_waiter_goes_first_and_the_others_are_served_in_the_same_round(policy: str) -> None:
    world = World(DeviceLimits(1000 * MIB, lanes_max=1, policy=policy))
    world.arrive(1, 50, 200)
    world.arrive(2, 50, 200, job_class=JobClass.BEST_EFFORT)
    world.confirm_all()
    world.want(1, 2)
    world.send(ev.SessionUngated(2))
    assert world.grants[1].revoked_ns is not None
    assert world.commands_at_boundary(1, hands_over=False)[:3] == [
        cmd.BindSession(1, 2),
        cmd.Grant(2, 1, world.grants[2].epoch),
        cmd.OpenLane(2, DEVICE, ADA, 200 * MIB, world.grants[2].epoch + 1),
    ]
    world.confirm_all()
    assert set(world.grants) == {1, 2}


def test_an_idle_session_that_was_ungated_pins_its_lane_with_its_first_grant() -> None:
    world = make_world(1)
    assert world.send(ev.SessionUngated(1)) == []
    assert world.want(1) == [cmd.Grant(1, 1, 2)]
    assert world.engine.snapshot().devices[0].lanes[0].is_pinned


def test_a_stopped_waiter_that_is_ungated_is_served_when_it_continues() -> None:
    world = make_world(2, lanes_max=1)
    world.want(1, 2)
    world.send(ev.SessionStopped(2))
    world.send(ev.SessionUngated(2))
    assert world.send(ev.SessionContinued(2)) == []
    assert world.commands_at_boundary(1)[:2] == [cmd.BindSession(1, 2), cmd.Grant(2, 1, 4)]


def test_an_ungated_holder_that_was_stopped_gets_no_service_when_it_continues() -> None:
    world = make_world(1)
    world.want(1)
    world.send(ev.SessionUngated(1))
    world.send(ev.SessionStopped(1))
    world.send(ev.SessionContinued(1))
    world.tick(SECOND_NS)
    assert world.engine.snapshot().devices[0].sessions[0].service_ns == 0


def test_an_ungated_waiter_goes_before_an_overdue_waiter_of_its_lane() -> None:
    world = make_world(3, lanes_max=1, overtakes_max=1, policy="fifo")
    for session in (1, 3, 2):
        world.want(session)
    world.commands_at_boundary(1)
    world.send(ev.SessionUngated(2))
    assert next(one.session for one in world.commands_at_boundary(1) if isinstance(one, cmd.Grant)) == 2


# Overruns


def test_an_overrun_is_allowed_if_bytes_are_free_and_the_lane_grows_at_a_boundary() -> None:
    world = make_world(1)
    world.want(1)
    assert world.send(ev.SessionOverran(1, 80 * MIB, 300 * MIB)) == [cmd.AllowOverrun(1, 80 * MIB, 300 * MIB)]
    assert world.engine.snapshot().devices[0].lanes[0].held_bytes == 200 * MIB
    world.commands_at_boundary(1, wants_next=False)
    assert world.want(1) == [cmd.ReleaseLane(1, 3)]
    assert world.confirm() == [cmd.OpenLane(1, DEVICE, ADA, 300 * MIB, 4)]


def test_an_overrun_never_lowers_the_admitted_sizes() -> None:
    world = make_world(1)
    assert world.send(ev.SessionOverran(1, 0, 0)) == [cmd.AllowOverrun(1, 50 * MIB, 200 * MIB)]


@pytest.mark.parametrize(("on_overrun", "last"), ACTIONS)
def test_an_overrun_that_exceeds_the_device_fails_in_the_job_that_made_it(on_overrun: FaultAction, last: type) -> None:
    world = make_world(2, on_overrun=on_overrun)
    shortfall = Shortfall("room for the largest iteration on device gpu0", 1000 * MIB, 950 * MIB, advice=ADVICE)
    assert world.send(ev.SessionOverran(1, 0, 950 * MIB)) == [
        cmd.RefuseOverrun(1, shortfall),
        last(1, shortfall.text()),
    ]


def test_a_persistent_overrun_may_take_free_bytes_only() -> None:
    world = make_world(2)
    shortfall = Shortfall("memory of device gpu0", 600 * MIB, 550 * MIB, advice=ADVICE)
    assert world.send(ev.SessionOverran(1, 600 * MIB, 0))[0] == cmd.RefuseOverrun(1, shortfall)


def test_an_overrun_beyond_the_charge_is_refused_while_a_placed_job_waits_for_its_memory() -> None:
    world = make_world(1)
    world.arrive(2, 900, 50, domain=BEN, is_placed=True)
    refusal, _ = world.send(ev.SessionOverran(1, 60 * MIB, 0))
    what = "memory of device gpu0 beyond the charge of job 1"
    advice = "another job waits for memory that it was charged for"
    assert refusal == cmd.RefuseOverrun(1, Shortfall(what, 10 * MIB, 0, advice=advice))


def test_an_overrun_within_the_charge_is_allowed_while_others_wait() -> None:
    world = make_world(1, lane_reserve_bytes=300 * MIB)
    world.arrive(2, 900, 50, domain=BEN, is_placed=True)
    assert world.send(ev.SessionOverran(1, 0, 300 * MIB)) == [cmd.AllowOverrun(1, 50 * MIB, 300 * MIB)]


def test_an_overrun_that_asks_for_nothing_new_is_allowed_while_others_wait() -> None:
    world = make_world(1)
    allowed = cmd.AllowOverrun(1, 60 * MIB, 200 * MIB)
    assert world.send(ev.SessionOverran(1, 60 * MIB, 0)) == [allowed]
    world.arrive(2, 900, 50, domain=BEN, is_placed=True)
    assert world.send(ev.SessionOverran(1, 60 * MIB, 0)) == [allowed]


def test_a_session_that_only_waits_for_its_turn_does_not_keep_others_from_an_overrun() -> None:
    world = make_world(1, lanes_max=1)
    world.arrive(2, 50, 200, is_placed=True)
    world.confirm_all()
    world.want(1, 2)
    assert world.send(ev.SessionOverran(1, 60 * MIB, 0)) == [cmd.AllowOverrun(1, 60 * MIB, 200 * MIB)]


def test_an_overrun_of_a_session_without_a_lane_is_all_persistent() -> None:
    world = World(DeviceLimits(1000 * MIB))
    world.arrive(1, 100, 0)
    assert world.send(ev.SessionOverran(1, 150 * MIB, 300 * MIB)) == [cmd.AllowOverrun(1, 450 * MIB, 0)]


def test_an_overrun_of_a_session_that_is_not_admitted_or_has_left_is_ignored() -> None:
    world = make_world(1)
    world.send(ev.DeviceDrained(DEVICE))
    world.arrive(2, 50, 50)
    assert world.send(ev.SessionOverran(2, 60 * MIB, 60 * MIB)) == []
    world.send(ev.SessionLeft(1))
    assert world.send(ev.SessionOverran(1, 60 * MIB, 60 * MIB)) == []


def test_a_hung_holder_does_not_block_a_policy_that_runs_one_session_at_a_time() -> None:
    world = World(DeviceLimits(1000 * MIB, policy="srtf", hang_timeout_ns=1000))
    world.arrive(1, 10, 100, remaining_ns=10**9)
    world.arrive(2, 10, 100, remaining_ns=10)
    world.confirm_all()
    world.want(1, 2)
    assert list(world.grants) == [1], "the short job waits for a boundary"
    world.wait(2000)
    world.confirm_all()
    assert 2 in world.grants
