"""Holders that cannot return their lane never keep a session that Slurm placed from running for long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodedaemon.core import commands as cmd
from nodedaemon.core import events as ev
from nodedaemon.core.policies import POLICIES
from nodedaemon.core.round.reclaim import EXCESS_REASON, STUCK_REASON
from nodedaemon.core.state.sessions import SessionState
from nodedaemon.core.types import MIB, MILLISECOND_NS, DeviceLimits, Domain, JobId, SessionId
from tests.support.engine_world import DEVICE, World

BEN = Domain("user:ben")
TIMEOUT_NS = 100 * MILLISECOND_NS
END = cmd.EndSession(1, STUCK_REASON)
END_EXCESS = cmd.EndSession(1, EXCESS_REASON)
WARN_EXCESS = cmd.WarnSession(1, EXCESS_REASON)


def make_tight_world(**limits: object) -> World:
    """Session 1 runs; session 2 of another user fits only in the memory of its lane."""
    fields = {"lane_reserve_bytes": 600 * MIB, "domain_quantum_ns": 0, "hang_timeout_ns": TIMEOUT_NS, **limits}
    world = World(DeviceLimits(1000 * MIB, **fields))  # type: ignore[arg-type]
    world.arrive(1, 100, 600, is_placed=True)
    world.confirm_all()
    world.want(1)
    return world


def ended(world: World) -> list[cmd.Command]:
    return [one for one in world.commands if isinstance(one, cmd.EndSession)]


def die(world: World) -> None:
    world.leave(1)
    world.confirm_all()


def stop(world: World) -> None:
    world.send(ev.SessionStopped(1))


def hang(world: World) -> None:
    """Nothing happens: it never returns its grant."""


def pin(world: World) -> None:
    world.send(ev.SessionUngated(1))
    assert world.engine.snapshot().devices[0].lanes[0].is_pinned


@pytest.mark.parametrize("misbehave", [stop, pin])
def test_a_placed_arrival_gets_its_memory_from_a_holder_that_never_returns_it(misbehave) -> None:
    world = make_tight_world()
    misbehave(world)
    world.arrive(2, 200, 600, domain=BEN, is_placed=True)
    world.wait(3 * TIMEOUT_NS)
    assert END in ended(world)
    die(world)
    assert 2 in world.admitted
    world.want(2)
    world.confirm_all()
    assert 2 in world.grants


@pytest.mark.parametrize("misbehave", [stop, hang])
def test_a_placed_waiter_gets_its_lane_from_a_holder_that_never_returns_it(misbehave) -> None:
    world = make_tight_world()
    world.arrive(2, 100, 600, domain=BEN, is_placed=True)
    world.confirm_all()
    misbehave(world)
    world.want(2)
    world.wait(3 * TIMEOUT_NS)
    assert END in ended(world)
    die(world)
    assert 2 in world.grants


def test_a_named_successor_does_not_wait_forever_behind_a_stopped_holder() -> None:
    world = World(DeviceLimits(1000 * MIB, lanes_max=1, hang_timeout_ns=TIMEOUT_NS))
    for session in (1, 2):
        world.arrive(session, 50, 200, is_placed=True)
    world.confirm_all()
    world.want(1, 2)
    stop(world)
    world.wait(3 * TIMEOUT_NS)
    assert END in ended(world)


def test_stuck_lanes_do_not_use_up_the_lanes_of_a_device() -> None:
    world = World(DeviceLimits(1000 * MIB, lanes_max=1, domain_quantum_ns=0, hang_timeout_ns=TIMEOUT_NS))
    world.arrive(1, 50, 200, is_placed=True)
    world.arrive(2, 50, 200, domain=BEN, is_placed=True)
    world.confirm_all()
    world.want(1)
    stop(world)
    world.want(2)
    world.wait(TIMEOUT_NS)
    assert ended(world) == [END]
    die(world)
    assert 2 in world.grants


def test_as_few_holders_as_possible_are_ended() -> None:
    world = World(DeviceLimits(1000 * MIB, lanes_max=3, domain_quantum_ns=0, hang_timeout_ns=TIMEOUT_NS))
    for session, size_mib in ((1, 400), (2, 100), (3, 100)):
        world.arrive(session, 50, size_mib, domain=Domain(f"user:{session}"), is_placed=True)
    world.confirm_all()
    world.want(1, 2, 3)
    for session in (1, 2, 3):
        world.send(ev.SessionStopped(session))
    world.arrive(4, 100, 400, domain=BEN, is_placed=True)
    world.wait(TIMEOUT_NS)
    assert ended(world) == [END]


def test_nobody_is_ended_while_the_others_can_run_or_have_no_claim() -> None:
    world = make_tight_world()
    stop(world)
    world.arrive(2, 100, 200, domain=BEN, is_placed=True)
    world.confirm_all()
    world.want(2)
    world.confirm_all()
    assert 2 in world.grants, "there is room beside the stopped session"
    world.wait(10 * TIMEOUT_NS)
    # Slurm did not place this one, so it may wait until another job ends.
    world.arrive(3, 200, 600, domain=BEN)
    world.wait(10 * TIMEOUT_NS)
    assert ended(world) == []


def test_a_job_that_slurm_suspended_is_left_alone_until_slurm_says_otherwise() -> None:
    world = make_tight_world()
    world.send(ev.SessionStopped(1, is_suspended=True))
    world.arrive(2, 200, 600, domain=BEN, is_placed=True)
    world.wait(10 * TIMEOUT_NS)
    assert ended(world) == []
    world.send(ev.SessionStopped(1, is_suspended=False))
    world.wait(2 * TIMEOUT_NS)
    assert END in ended(world)


def test_a_process_that_does_not_die_is_ended_again() -> None:
    world = make_tight_world()
    stop(world)
    world.arrive(2, 200, 600, domain=BEN, is_placed=True)
    world.wait(2 * TIMEOUT_NS)
    assert ended(world) == [END, END]


def test_time_in_which_a_stopped_session_blocks_others_counts_as_its_service() -> None:
    world = make_tight_world()
    world.arrive(2, 100, 600, domain=BEN, is_placed=True)
    world.confirm_all()
    world.want(2)
    stop(world)
    world.now_ns += TIMEOUT_NS // 2
    world.send(ev.SessionContinued(1))
    one, two = world.engine.snapshot().devices[0].sessions
    assert (one.virtual_service - two.virtual_service) >> 16 == TIMEOUT_NS // 2
    assert one.service_ns == 0, "reports show what it really had"
    assert ended(world) == []


def test_a_lost_device_ends_nobody() -> None:
    world = make_tight_world()
    stop(world)
    world.arrive(2, 200, 600, domain=BEN, is_placed=True)
    world.send(ev.DeviceLost(DEVICE, "Xid 79"))
    world.wait(10 * TIMEOUT_NS)
    world.tick()
    assert ended(world) == []


def test_a_drained_device_ends_nobody_for_an_arrival() -> None:
    world = make_tight_world()
    world.send(ev.DeviceDrained(DEVICE))
    stop(world)
    world.arrive(2, 200, 600, domain=BEN, is_placed=True)
    world.wait(10 * TIMEOUT_NS)
    assert ended(world) == []


def test_a_session_stays_gated_if_others_need_its_lane() -> None:
    world = make_tight_world()
    world.arrive(2, 100, 600, domain=BEN, is_placed=True)
    world.confirm_all()
    assert world.send(ev.SessionUngated(1)) == []
    assert not world.engine.session(1).is_ungated
    world.want(2)
    world.commands_at_boundary(1)
    world.confirm_all()
    assert 2 in world.grants


def test_an_ungated_session_takes_turns_again_if_others_arrived_before_its_grant() -> None:
    world = World(DeviceLimits(1000 * MIB, lane_reserve_bytes=600 * MIB, domain_quantum_ns=0))
    world.arrive(1, 100, 600)
    world.confirm_all()
    world.send(ev.SessionUngated(1))
    world.arrive(2, 100, 600, domain=BEN)
    world.confirm_all()
    world.want(1)
    world.confirm_all()
    assert not world.engine.session(1).is_ungated
    assert 1 in world.grants
    assert not world.engine.snapshot().devices[0].lanes[0].is_pinned


@pytest.mark.parametrize(
    ("other_mib", "persistent_mib"),
    [pytest.param(100, 300, id="counted"), pytest.param(700, 100, id="dropped")],
)
def test_a_session_with_memory_of_its_own_has_no_lane(other_mib: int, persistent_mib: int) -> None:
    world = World(DeviceLimits(1000 * MIB, domain_quantum_ns=0))
    world.arrive(2, 100, other_mib, domain=BEN)
    world.arrive(1, 100, 200)
    world.confirm_all()
    world.send(ev.SessionUngated(1, has_own_memory=True))
    world.persistent_bytes[1] = persistent_mib * MIB
    world.confirm_all()
    (device,) = world.engine.snapshot().devices
    one = next(one for one in device.sessions if one.session == 1)
    assert (one.state, one.ephemeral_bytes, one.lane) == (SessionState.UNGATED, 0, None)
    assert one.persistent_bytes == persistent_mib * MIB
    world.leave(1)
    world.confirm_all()


def test_a_session_with_memory_of_its_own_claims_it_when_it_arrives() -> None:
    world = World(DeviceLimits(1000 * MIB))
    for session in (1, 3):
        world.arrive(session, 100, 300, domain=Domain(f"user:{session}"))
    world.confirm_all()
    world.arrive(2, 250, 100, domain=BEN)
    assert 2 not in world.admitted
    world.send(ev.SessionUngated(2, has_own_memory=True))
    world.confirm_all()
    assert world.persistent_bytes[2] == 350 * MIB


def test_a_lane_that_is_being_opened_for_a_session_with_memory_of_its_own_is_released() -> None:
    world = World(DeviceLimits(1000 * MIB))
    world.arrive(1, 100, 200)
    assert world.send(ev.SessionUngated(1, has_own_memory=True))[0] == cmd.ReleaseLane(1, 2)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_holder_that_the_policy_prefers_must_return_its_grant_from_time_to_time(policy: str) -> None:
    world = World(DeviceLimits(1000 * MIB, lanes_max=1, policy=policy, hang_timeout_ns=TIMEOUT_NS))
    for session in (1, 2):
        world.arrive(session, 50, 200)
    world.confirm_all()
    world.want(1)
    world.wait(TIMEOUT_NS // 2)
    assert world.grants[1].revoked_ns is None
    world.want(2)
    world.wait(TIMEOUT_NS // 2)
    assert world.grants[1].revoked_ns is not None
    world.wait(TIMEOUT_NS)
    assert any(isinstance(one, cmd.ReportOverdue) for one in world.commands), "it hangs, and this is reported"


# Sessions above their charge


def make_greedy_world(**limits: object) -> World:
    """Session 1 was charged for 16 + 16 MiB, and 700 MiB were allowed while nobody needed them."""
    fields = {"lane_reserve_bytes": 200 * MIB, "domain_quantum_ns": 0, "hang_timeout_ns": TIMEOUT_NS, **limits}
    world = World(DeviceLimits(1000 * MIB, **fields))  # type: ignore[arg-type]
    world.arrive(1, 16, 16, is_placed=True)
    world.confirm_all()
    assert world.send(ev.SessionOverran(1, 700 * MIB, 0))[0] == cmd.AllowOverrun(1, 700 * MIB, 16 * MIB)
    return world


def warned(world: World) -> list[cmd.Command]:
    return [one for one in world.commands if isinstance(one, cmd.WarnSession)]


def test_a_placed_arrival_gets_the_memory_of_a_session_above_its_charge() -> None:
    world = make_greedy_world()
    world.arrive(2, 200, 200, domain=BEN, is_placed=True)
    assert (2 in world.admitted, warned(world), ended(world)) == (False, [WARN_EXCESS], [])
    world.wait(TIMEOUT_NS)
    assert (warned(world), ended(world)) == ([WARN_EXCESS], [END_EXCESS])
    die(world)
    assert 2 in world.admitted


def test_a_session_above_its_charge_gains_no_time_with_turns_or_stops() -> None:
    world = make_greedy_world()
    world.arrive(2, 200, 200, domain=BEN, is_placed=True)
    for _ in range(4):
        world.want(1)
        world.confirm_all()
        world.wait(TIMEOUT_NS // 8)
        world.commands_at_boundary(1, wants_next=False)
        world.send(ev.SessionStopped(1))
        world.wait(TIMEOUT_NS // 8)
        world.send(ev.SessionContinued(1))
    assert ended(world) == [END_EXCESS]


def test_a_session_that_left_but_whose_process_lives_keeps_no_excess() -> None:
    world = make_greedy_world()
    world.leave(SessionId(1))
    world.arrive(2, 200, 200, domain=BEN, is_placed=True)
    world.wait(TIMEOUT_NS)
    assert ended(world) == [END_EXCESS]


@pytest.mark.parametrize("is_placed", [True, False])
def test_nobody_above_its_charge_is_ended_while_the_others_fit_or_have_no_claim(is_placed) -> None:
    world = make_greedy_world()
    size_mib = 50 if is_placed else 200
    world.arrive(2, size_mib, 200, domain=BEN, is_placed=is_placed)
    world.wait(10 * TIMEOUT_NS)
    assert (warned(world), ended(world)) == ([], [])


def test_a_session_above_its_charge_that_slurm_suspended_is_left_alone() -> None:
    world = make_greedy_world()
    world.send(ev.SessionStopped(1, is_suspended=True))
    world.arrive(2, 200, 200, domain=BEN, is_placed=True)
    world.wait(10 * TIMEOUT_NS)
    assert ended(world) == []


def test_the_session_with_the_largest_excess_is_ended_first_and_no_other() -> None:
    world = World(DeviceLimits(1000 * MIB, lane_reserve_bytes=200 * MIB, hang_timeout_ns=TIMEOUT_NS))
    for session, size_mib in ((2, 150), (1, 400), (3, 100)):
        world.arrive(session, 16, 0, domain=Domain(f"user:{session}"), is_placed=True)
        world.send(ev.SessionOverran(SessionId(session), size_mib * MIB, 0))
    world.arrive(4, 400, 100, domain=BEN, is_placed=True)
    world.wait(TIMEOUT_NS)
    assert ended(world) == [END_EXCESS]


def test_a_session_above_its_charge_is_left_alone_if_only_a_stuck_lane_is_in_the_way() -> None:
    world = make_tight_world()
    world.arrive(3, 10, 0, is_placed=True)
    world.send(ev.SessionOverran(SessionId(3), 20 * MIB, 0))
    stop(world)
    world.arrive(2, 200, 600, domain=BEN, is_placed=True)
    world.wait(TIMEOUT_NS)
    assert ended(world) == [END]


def test_a_stopped_session_above_its_charge_is_ended_once_for_both() -> None:
    world = make_tight_world()
    assert world.send(ev.SessionOverran(1, 200 * MIB, 0))[0] == cmd.AllowOverrun(1, 200 * MIB, 600 * MIB)
    stop(world)
    world.arrive(2, 300, 600, domain=BEN, is_placed=True)
    world.wait(TIMEOUT_NS)
    assert ended(world) == [END_EXCESS]


def test_the_time_in_which_an_excess_blocks_others_counts_as_service() -> None:
    world = make_greedy_world()
    world.want(1)
    world.arrive(2, 200, 200, domain=BEN, is_placed=True)
    world.now_ns += TIMEOUT_NS // 2
    world.leave(SessionId(2))
    one = next(one for one in world.engine.snapshot().devices[0].sessions if one.session == 1)
    assert one.virtual_service >> 16 == TIMEOUT_NS
    world.wait(10 * TIMEOUT_NS)
    assert ended(world) == []


def test_a_job_is_charged_once_whatever_the_number_of_its_sessions() -> None:
    world = World(DeviceLimits(1000 * MIB, hang_timeout_ns=TIMEOUT_NS))
    job = JobId("greedy")
    world.arrive(3, 300, 0, job=job, is_placed=True)
    world.leave(SessionId(3))
    world.arrive(1, 300, 0, job=job, is_placed=True)
    assert 1 in world.admitted, "nobody needs the bytes"
    world.arrive(2, 500, 0, domain=BEN, is_placed=True)
    world.arrive(4, 200, 0, job=job, is_placed=True)
    assert not {2, 4} & world.admitted, "a further session of the job takes nothing that another job paid for"
    world.wait(TIMEOUT_NS // 2)
    assert (warned(world), ended(world)) == ([WARN_EXCESS], [])
    # The process of its first session ends at last, and its charge passes to the next session.
    world.confirm_all()
    assert 2 in world.admitted
    world.wait(10 * TIMEOUT_NS)
    assert ended(world) == []
    assert world.engine.session(SessionId(1)).charged_persistent_bytes == 300 * MIB  # type: ignore[union-attr]


def test_a_higher_lane_reserve_makes_an_excess_part_of_the_charge() -> None:
    limits = DeviceLimits(1000 * MIB, lane_reserve_bytes=100 * MIB, hang_timeout_ns=TIMEOUT_NS)
    world = World(limits)
    world.arrive(1, 16, 16, is_placed=True)
    world.send(ev.SessionOverran(1, 0, 600 * MIB))
    world.arrive(2, 500, 200, domain=BEN, is_placed=True)
    assert warned(world) == [WARN_EXCESS]
    world.send(ev.LimitsChanged(DEVICE, replace(limits, lane_reserve_bytes=600 * MIB)))
    world.wait(10 * TIMEOUT_NS)
    assert ended(world) == []


def test_an_idle_session_above_its_charge_is_not_served_when_it_stops_blocking() -> None:
    world = make_greedy_world()
    world.arrive(2, 200, 200, domain=BEN, is_placed=True)
    world.now_ns += TIMEOUT_NS // 2
    world.leave(SessionId(2))
    (device,) = world.engine.devices()
    assert device.sessions[SessionId(1)].virtual >> 16 == TIMEOUT_NS // 2
    assert device.book.state()[0] == {}, "an idle session is not active"


def test_a_stopped_holder_above_its_charge_with_a_successor_is_ended_once() -> None:
    world = World(DeviceLimits(1000 * MIB, lanes_max=1, lane_reserve_bytes=200 * MIB, hang_timeout_ns=TIMEOUT_NS))
    for session in (1, 2):
        world.arrive(session, 50, 200, is_placed=True)
    world.confirm_all()
    world.send(ev.SessionOverran(1, 600 * MIB, 0))
    world.want(1, 2)
    stop(world)
    world.arrive(3, 200, 200, domain=BEN, is_placed=True)
    world.wait(TIMEOUT_NS)
    assert ended(world) == [END_EXCESS]
