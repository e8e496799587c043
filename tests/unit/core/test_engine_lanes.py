"""Which lane a session joins and which lanes release their bytes: examples with all commands."""

from __future__ import annotations

from nodedaemon.core import commands as cmd
from nodedaemon.core import events as ev
from nodedaemon.core.state.lanes import LaneState
from nodedaemon.core.types import MIB, SECOND_NS, DeviceLimits, Domain, JobClass
from tests.support.engine_world import DEVICE, World

ADA, BEN = Domain("user:ada"), Domain("user:ben")


def make(**limits: object) -> World:
    return World(DeviceLimits(1000 * MIB, **limits))  # type: ignore[arg-type]


def make_two_domains(ephemeral_mib: int, other_mib: int, *, is_ready: bool = True, **limits: object) -> World:
    """Session 1 of one domain and session 2 of another. `is_ready` says that the lanes have been opened."""
    world = make(**limits)
    world.arrive(1, 100, ephemeral_mib)
    world.arrive(2, 100, other_mib, domain=BEN)
    if is_ready:
        world.confirm_all()
    return world


def lane_of(world: World, session: int) -> int | None:
    (device,) = world.engine.snapshot().devices
    return next(one.lane for one in device.sessions if one.session == session)


def lane_states(world: World) -> dict[int, tuple[LaneState, int]]:
    (device,) = world.engine.snapshot().devices
    return {one.lane: (one.state, one.held_bytes // MIB) for one in device.lanes}


def test_a_session_gets_a_new_lane_while_bytes_are_free() -> None:
    world = make()
    world.arrive(1, 100, 300)
    assert world.arrive(2, 100, 200) == [
        cmd.AdmitSession(2, 100 * MIB),
        cmd.BindSession(2, 2),
        cmd.OpenLane(2, DEVICE, ADA, 200 * MIB, 2),
    ]


def test_without_free_bytes_a_session_joins_the_smallest_lane_that_fits() -> None:
    world = make(lanes_max=2)
    world.arrive(1, 100, 300)
    world.arrive(2, 100, 200)
    assert world.arrive(3, 50, 150)[-1] == cmd.BindSession(3, 2)
    assert world.arrive(4, 50, 250)[-1] == cmd.BindSession(4, 1)


def test_of_two_equal_lanes_a_session_joins_the_one_with_fewer_sessions() -> None:
    world = make(lanes_max=2)
    for session in (1, 2):
        world.arrive(session, 50, 200)
    assert world.arrive(3, 50, 200)[-1] == cmd.BindSession(3, 1)
    assert world.arrive(4, 50, 200)[-1] == cmd.BindSession(4, 2)


def test_a_lane_grows_at_a_boundary_by_release_and_open() -> None:
    world = make(lanes_max=1)
    world.arrive(1, 100, 300)
    world.confirm_all()
    assert world.arrive(2, 100, 400) == [cmd.AdmitSession(2, 100 * MIB), cmd.BindSession(2, 1)]
    assert world.want(2) == [cmd.ReleaseLane(1, 2)]
    assert world.confirm() == [cmd.OpenLane(1, DEVICE, ADA, 400 * MIB, 3)]
    assert world.confirm() == [cmd.Grant(2, 1, 4)]


def test_a_busy_lane_grows_only_after_its_holder_has_returned_the_grant() -> None:
    world = make(lanes_max=1)
    world.arrive(1, 100, 300)
    world.confirm_all()
    world.want(1)
    world.arrive(2, 100, 400)
    assert world.want(2) == [cmd.Revoke(1, 2), cmd.WakeAt(DEVICE, 60 * SECOND_NS)]
    assert world.commands_at_boundary(1) == [cmd.ReleaseLane(1, 3)]


def test_a_session_of_another_domain_without_free_bytes_gets_a_parked_lane() -> None:
    world = make()
    world.arrive(1, 100, 600)
    assert world.arrive(2, 100, 300, domain=BEN) == [cmd.AdmitSession(2, 100 * MIB), cmd.BindSession(2, 2)]
    assert lane_states(world) == {1: (LaneState.OPENING, 600), 2: (LaneState.PARKED, 0)}


def test_a_domain_needs_no_second_parked_lane() -> None:
    world = make_two_domains(600, 300, is_ready=False)
    assert world.arrive(3, 100, 300, domain=BEN)[-1] == cmd.BindSession(3, 2)


def test_a_parked_lane_opens_when_its_session_wants_a_grant_and_bytes_are_free() -> None:
    world = make_two_domains(600, 300)
    world.leave(1)
    world.confirm_all()
    assert world.want(2) == [cmd.OpenLane(2, DEVICE, BEN, 300 * MIB, 3)]
    assert world.confirm() == [cmd.Grant(2, 2, 4)]


def test_an_arrival_gets_bytes_by_merging_lanes_of_one_domain() -> None:
    world = make()
    world.arrive(1, 100, 300)
    world.arrive(2, 100, 200)
    world.confirm_all()
    assert world.arrive(3, 350, 150) == [cmd.BindSession(2, 1), cmd.ReleaseLane(2, 3)]
    assert world.confirm() == [
        cmd.CloseLane(2),
        cmd.AdmitSession(3, 350 * MIB),
        cmd.BindSession(3, 3),
        cmd.OpenLane(3, DEVICE, ADA, 150 * MIB, 4),
    ]


def test_an_arrival_parks_an_idle_lane_of_another_domain_and_spares_the_busy_one() -> None:
    world = make_two_domains(300, 300)
    world.want(1)
    assert world.arrive(3, 400, 250) == [cmd.ReleaseLane(2, 4)]
    assert world.confirm() == [cmd.AdmitSession(3, 400 * MIB), cmd.BindSession(3, 1)]
    assert lane_states(world) == {1: (LaneState.OPEN, 300), 2: (LaneState.PARKED, 0)}


def test_an_arrival_that_needs_bytes_of_busy_lanes_waits_for_their_boundaries_and_no_other_starts() -> None:
    world = make(lanes_max=2)
    world.arrive(1, 100, 300)
    world.arrive(2, 100, 300)
    world.confirm_all()
    world.want(1, 2)
    assert world.arrive(3, 500, 100) == [cmd.Revoke(1, 3), cmd.WakeAt(DEVICE, 60 * SECOND_NS)]
    assert world.commands_at_boundary(1) == [cmd.BindSession(1, 2), cmd.ReleaseLane(1, 5), cmd.Revoke(2, 4)]
    command_count = len(world.commands)
    world.confirm()
    assert world.commands[command_count : command_count + 2] == [cmd.CloseLane(1), cmd.AdmitSession(3, 500 * MIB)]


def test_bytes_count_until_their_release_is_confirmed() -> None:
    world = make_two_domains(300, 300)
    world.arrive(3, 400, 250)
    (device,) = world.engine.snapshot().devices
    assert (device.persistent_bytes // MIB, device.held_bytes // MIB, device.free_bytes // MIB) == (200, 600, 200)
    assert world.arrive(4, 10, 100) == [], "a later arrival is not admitted before an older one"


def test_another_domain_waits_for_the_quantum() -> None:
    world = make()
    world.arrive(1, 100, 600)
    world.confirm_all()
    world.want(1)
    world.arrive(2, 100, 600, domain=BEN)
    assert world.want(2) == [cmd.LimitGrant(1, 2, 1000), cmd.WakeAt(DEVICE, SECOND_NS)]
    world.tick()
    assert world.commands[-2:] == [cmd.Revoke(1, 2), cmd.WakeAt(DEVICE, 61 * SECOND_NS)]
    assert world.commands_at_boundary(1) == [cmd.ReleaseLane(1, 3)]
    assert world.confirm() == [cmd.OpenLane(2, DEVICE, BEN, 600 * MIB, 4)]
    assert world.confirm()[0] == cmd.Grant(2, 2, 5, 1000)


def test_an_idle_lane_is_taken_by_another_domain_after_idle_release() -> None:
    world = make()
    world.arrive(1, 100, 600)
    world.confirm_all()
    world.arrive(2, 100, 600, domain=BEN)
    assert world.want(2) == [cmd.WakeAt(DEVICE, SECOND_NS // 5)]
    world.tick()
    assert world.commands[-1] == cmd.ReleaseLane(1, 2)


def test_a_higher_class_ignores_the_quantum() -> None:
    world = make(policy="priority")
    world.arrive(1, 100, 600)
    world.confirm_all()
    world.want(1)
    world.arrive(2, 100, 600, domain=BEN, job_class=JobClass.HIGH)
    assert world.want(2) == [cmd.Revoke(1, 2), cmd.WakeAt(DEVICE, 60 * SECOND_NS)]
    assert world.commands_at_boundary(1) == [cmd.ReleaseLane(1, 3)]


def test_a_lane_shrinks_to_its_largest_remaining_session() -> None:
    world = make(lanes_max=1)
    world.arrive(1, 100, 300)
    world.arrive(2, 100, 200)
    world.confirm_all()
    assert world.send(ev.SessionLeft(1)) == [cmd.ReleaseSession(1), cmd.ReleaseLane(1, 2)]
    world.confirm_all()
    assert world.want(2) == [cmd.OpenLane(1, DEVICE, ADA, 200 * MIB, 3)]


def test_a_lane_without_sessions_closes() -> None:
    world = make()
    world.arrive(1, 100, 300)
    world.confirm_all()
    assert world.send(ev.SessionLeft(1)) == [cmd.ReleaseSession(1), cmd.ReleaseLane(1, 2)]
    assert world.confirm() == []
    assert world.confirm() == [cmd.CloseLane(1)]


def test_a_lane_that_becomes_empty_while_it_opens_is_released_and_the_late_answer_changes_nothing() -> None:
    world = make()
    world.arrive(1, 100, 300)
    assert world.send(ev.SessionLeft(1)) == [cmd.ReleaseLane(1, 2), cmd.ReleaseSession(1)]
    assert world.send(ev.LaneOpened(1, 1)) == []
    assert world.send(ev.LaneReleased(1, 2)) == [cmd.CloseLane(1)]
    assert world.send(ev.LaneReleased(1, 2)) == []


def test_a_parked_lane_without_sessions_closes_at_once() -> None:
    world = make_two_domains(600, 300, is_ready=False)
    assert world.send(ev.SessionLeft(2)) == [cmd.CloseLane(2), cmd.ReleaseSession(2)]


def test_a_waiter_behind_a_busy_lane_moves_to_a_lane_of_its_own_when_bytes_become_free() -> None:
    world = make()
    world.arrive(1, 100, 300)
    world.arrive(2, 500, 50)
    world.arrive(3, 50, 200)
    world.confirm_all()
    assert [lane_of(world, session) for session in (1, 2, 3)] == [1, 2, 1]
    world.want(1)
    world.now_ns = SECOND_NS
    # A named successor stays, because its predecessor may have started it already.
    assert world.want(3) == [cmd.Revoke(1, 3, 3, 4), cmd.WakeAt(DEVICE, 61 * SECOND_NS)]
    world.leave(2)
    world.confirm_all()
    assert lane_of(world, 3) == 1
    # Now session 1 waits behind session 3. Session 3 must catch up first, so no successor is named and session 1 moves.
    world.now_ns += SECOND_NS
    assert world.commands_at_boundary(1)[:3] == [
        cmd.LimitGrant(3, 4, 1000),
        cmd.BindSession(1, 3),
        cmd.OpenLane(3, DEVICE, ADA, 300 * MIB, 6),
    ]


def test_a_waiter_joins_an_open_lane_of_its_domain_instead_of_claiming_bytes() -> None:
    world = make(lanes_max=1)
    world.arrive(1, 50, 300, domain=BEN)
    world.arrive(2, 50, 100)
    world.arrive(3, 50, 200)
    world.confirm_all()
    assert lane_of(world, 2) == lane_of(world, 3) == 2
    world.now_ns = 2 * SECOND_NS
    assert world.want(2) == [cmd.ReleaseLane(1, 2)]
    world.confirm_all()
    assert lane_states(world) == {1: (LaneState.PARKED, 0), 2: (LaneState.OPEN, 200)}


def test_a_session_without_ephemeral_bytes_has_no_lane_and_no_gate() -> None:
    world = make()
    assert world.arrive(1, 400, 0) == [cmd.AdmitSession(1, 400 * MIB)]
    assert lane_states(world) == {}
    assert world.send(ev.SessionUngated(1)) == []
    assert world.send(ev.SessionLeft(1)) == [cmd.ReleaseSession(1)]


def test_sizes_are_rounded_up_to_the_granularity() -> None:
    world = make()
    assert world.arrive(1, 1, 3) == [
        cmd.AdmitSession(1, 2 * MIB),
        cmd.BindSession(1, 1),
        cmd.OpenLane(1, DEVICE, ADA, 4 * MIB, 1),
    ]


def test_lane_memory_that_cannot_be_allocated_is_tried_again_after_a_second() -> None:
    world = make()
    world.arrive(1, 100, 200)
    world.due.clear()
    world.lane_bytes.clear()
    assert world.send(ev.LaneFailed(1, 1, "out of memory")) == []
    assert world.want(1) == [cmd.WakeAt(DEVICE, SECOND_NS)]
    world.tick()
    assert world.commands[-1] == cmd.OpenLane(1, DEVICE, ADA, 200 * MIB, 2)
    assert world.send(ev.LaneFailed(1, 1, "late")) == []
    assert world.confirm() == [cmd.Grant(1, 1, 3)]


def test_answers_that_do_not_fit_the_lanes_state_change_nothing() -> None:
    world = make()
    world.arrive(1, 100, 200)
    world.confirm_all()
    before = world.engine.snapshot()
    for late in (ev.LaneOpened(1, 1), ev.LaneReleased(1, 1), ev.LaneFailed(1, 1, "late"), ev.LaneOpened(99, 1)):
        assert world.send(late) == []
    assert world.engine.snapshot() == before
