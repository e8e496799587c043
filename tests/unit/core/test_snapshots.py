"""The state as a value: forks are independent, replays reproduce it, and the invariants detect a wrong state."""

from __future__ import annotations

import pytest

from nodedaemon.core import events as ev
from nodedaemon.core.engine import Engine
from nodedaemon.core.state.invariants import check, check_device
from nodedaemon.core.state.lanes import LaneState
from nodedaemon.core.state.sessions import SessionState
from nodedaemon.core.types import MIB, MILLISECOND_NS, DeviceLimits, Domain, JobClass
from tests.support.engine_world import DEVICE, World


def make_busy() -> World:
    """Two domains with a holder, a waiter, a stopped session, a leaving session and a parked lane."""
    world = World(DeviceLimits(1000 * MIB, lanes_max=2))
    world.arrive(1, 50, 200)
    world.arrive(2, 50, 300, job_class=JobClass.HIGH, weight=2, remaining_ns=10**9)
    world.arrive(3, 50, 200, domain=Domain("user:ben"))
    world.arrive(4, 50, 100)
    world.confirm_all()
    for session in (1, 4, 3):
        world.want(session)
    world.now_ns = MILLISECOND_NS
    world.send(ev.SessionStopped(4))
    world.leave(2)
    return world


def test_a_snapshot_shows_the_whole_state() -> None:
    world = make_busy()
    (device,) = world.engine.snapshot().devices
    assert (device.persistent_bytes, device.held_bytes, device.free_bytes) == (200 * MIB, 500 * MIB, 300 * MIB)
    assert {one.session: one.state for one in device.sessions} == {
        1: SessionState.REVOKED,
        2: SessionState.LEAVING,
        3: SessionState.WAITING,
        4: SessionState.WAITING,
    }
    assert {one.lane: (one.state, one.holder, one.sessions) for one in device.lanes} == {
        1: (LaneState.OPEN, 1, (1, 4)),
        2: (LaneState.RELEASING, None, ()),
        3: (LaneState.PARKED, None, (3,)),
    }


def test_a_replay_gives_the_same_commands_and_the_same_state() -> None:
    world = make_busy()
    replayed = Engine()
    commands = [command for event, now_ns in world.journal for command in replayed.handle(event, now_ns)]
    assert commands == world.commands
    assert replayed.snapshot() == world.engine.snapshot()


def test_a_fork_is_independent_of_its_origin() -> None:
    world = make_busy()
    fork = world.engine.fork()
    before = world.engine.snapshot()
    assert fork.snapshot() == before
    fork.handle(ev.SessionLeft(1), MILLISECOND_NS)
    assert fork.snapshot() != before
    assert world.engine.snapshot() == before
    check(fork)
    # The same event gives the same commands later: the fork has changed nothing.
    assert world.engine.handle(ev.SessionLeft(1), MILLISECOND_NS) == make_busy().engine.handle(
        ev.SessionLeft(1), MILLISECOND_NS
    )


def test_events_after_a_fork_give_the_same_commands_in_both() -> None:
    world = make_busy()
    fork = world.engine.fork()
    for event in (ev.SessionContinued(4), ev.Ticked(DEVICE), ev.SessionLeft(1)):
        assert fork.handle(event, 2 * MILLISECOND_NS) == world.engine.handle(event, 2 * MILLISECOND_NS)


@pytest.mark.parametrize(
    ("field", "value", "answer"),
    [
        ("persistent_bytes", 900 * MIB, "bytes promised twice"),
        ("persistent_bytes", -1, "persistent bytes below zero"),
        ("releasing_bytes", 600 * MIB, "releasing more than is held"),
    ],
)
def test_the_constant_time_check_detects_sums_that_break_the_rule(field: str, value: int, answer: str) -> None:
    (device,) = make_busy().engine.devices()
    check_device(device)
    setattr(device, field, value)
    with pytest.raises(AssertionError, match=answer):
        check_device(device)


def test_the_full_check_detects_two_domains_in_a_lane() -> None:
    world = make_busy()
    (device,) = world.engine.devices()
    device.sessions[4].domain = Domain("user:ben")
    with pytest.raises(AssertionError, match="two domains in one lane"):
        check(world.engine)


def test_the_full_check_detects_two_iterations_in_a_lane() -> None:
    world = make_busy()
    (device,) = world.engine.devices()
    device.sessions[4].state = SessionState.RUNNING
    device.waits[JobClass.NORMAL].append(4)
    device.sessions[4].is_stopped = False
    device.waits[JobClass.NORMAL].remove(4, is_granted=False)
    with pytest.raises(AssertionError, match="two iterations at a time"):
        check(world.engine)


def test_the_full_check_detects_a_holder_that_does_not_fit() -> None:
    world = make_busy()
    (device,) = world.engine.devices()
    device.sessions[1].granted_bytes = 201 * MIB
    with pytest.raises(AssertionError, match="its holder does not fit"):
        check(world.engine)


def test_the_full_check_detects_an_epoch_that_goes_back() -> None:
    world = make_busy()
    epochs: dict[str, int] = {}
    check(world.engine, epochs)  # type: ignore[arg-type]
    (device,) = world.engine.devices()
    device.epoch -= 1
    with pytest.raises(AssertionError, match="epoch went back"):
        check(world.engine, epochs)  # type: ignore[arg-type]
