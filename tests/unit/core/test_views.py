"""The views show what the last commands said, so that the shell need not remember the commands."""

from __future__ import annotations

from nodedaemon.core import commands as cmd
from nodedaemon.core import events as ev
from nodedaemon.core.state.lanes import LaneState
from nodedaemon.core.state.views import LaneView, SessionView
from nodedaemon.core.types import MIB, MILLISECOND_NS, DeviceLimits, Epoch, LaneId, SessionId
from tests.support.engine_world import DEVICE, World, make_world


def make() -> World:
    """A holder and a waiter that share one lane."""
    world = make_world(2, lanes_max=1, policy="fifo")
    world.want(1, 2)
    return world


def view(world: World, session: int) -> SessionView:
    found = world.engine.session(SessionId(session))
    assert found is not None
    return found


def last(world: World, kind: type[cmd.Command]) -> cmd.Command:
    return next(one for one in reversed(world.commands) if isinstance(one, kind))


def test_a_session_has_a_view_from_its_arrival_until_its_release() -> None:
    world = make()
    assert (world.engine.session(SessionId(9)), world.engine.lane(LaneId(9))) == (None, None)
    holder = view(world, 1)
    world.send(ev.SessionLeft(SessionId(1)))
    assert holder.is_leaving
    world.send(ev.SessionReleased(SessionId(1)))
    assert world.engine.session(SessionId(1)) is None


def test_a_view_follows_the_session_through_its_life() -> None:
    world = World(DeviceLimits(400 * MIB))
    world.send(ev.DeviceDrained(DEVICE))
    world.arrive(1, 50, 200)
    session = view(world, 1)
    assert (session.is_admitted, session.is_gated, session.lane) == (False, True, None)
    world.send(ev.DeviceResumed(DEVICE))
    assert session.is_admitted
    lane: LaneView | None = session.lane
    assert lane is not None
    assert lane is world.engine.lane(lane.id)
    assert (lane.state, lane.device, lane.held_bytes) == (LaneState.OPENING, DEVICE, 200 * MIB)
    world.want(1)
    assert session.is_waiting
    world.confirm_all()
    assert not session.is_waiting
    assert session.epoch is not None


def test_a_session_without_a_lane_is_not_gated() -> None:
    world = World(DeviceLimits(400 * MIB))
    world.arrive(1, 50, 0)
    assert not view(world, 1).is_gated


def test_iterations_of_a_grant_that_was_never_returned_are_counted() -> None:
    world = make()
    holder = view(world, 1)
    world.send(ev.SessionLeft(SessionId(1), 3))
    assert holder.iteration_count == 3


def test_the_named_successor_and_its_epoch_are_those_of_the_last_revoke() -> None:
    world = make_world(2, lanes_max=1, policy="fair")
    world.want(1)
    holder = view(world, 1)
    assert (holder.successor, holder.successor_epoch, holder.is_revoked) == (None, None, False)
    world.want(2)
    world.wait(10_000 * MILLISECOND_NS)
    revoke = last(world, cmd.Revoke)
    assert isinstance(revoke, cmd.Revoke)
    assert revoke.successor_epoch is not None
    assert (holder.successor, holder.successor_epoch) == (revoke.successor, revoke.successor_epoch)
    assert dict(holder.offers) == {revoke.successor_epoch: 2}
    assert holder.is_revoked


def test_the_limit_is_that_of_the_grant_or_of_a_later_limit() -> None:
    world = make()
    holder = view(world, 1)
    limited = last(world, cmd.LimitGrant)
    assert isinstance(limited, cmd.LimitGrant)
    assert (holder.lease_limit, holder.is_limited_later) == (limited.iteration_count, True)
    world.send(ev.GrantReturned(SessionId(1), holder.epoch or Epoch(0)))
    granted = last(world, cmd.Grant)
    assert isinstance(granted, cmd.Grant)
    following = view(world, granted.session)
    assert granted.iteration_limit is not None
    assert (following.lease_limit, following.is_limited_later) == (granted.iteration_limit, False)


def test_a_pinned_lane_has_no_limit() -> None:
    world = make()
    holder = view(world, 1)
    assert holder.lease_limit is not None
    world.send(ev.SessionUngated(SessionId(1)))
    assert (holder.is_gated, holder.lease_limit) == (False, None)
    assert holder.epoch is not None
