"""What is frozen is all there is: every field of the live state has its place, and what cannot be is refused."""

from dataclasses import fields, replace

import pytest

from nodedaemon.core.errors import OperatingError
from nodedaemon.core.frozen import FORMAT, FrozenLane, FrozenSession, freeze, thaw
from nodedaemon.core.lanes import Device, Lane
from nodedaemon.core.sessions import Session
from nodedaemon.core.types import MIB, DeviceLimits, Domain, SessionId
from tests.support.engine_world import World

#: Heaps, maps and references that are made again from the rest.
DERIVED = {"device", "waiters", "_sizes", "_parked", "domains", "ordering", "book"}


def names(kind):
    return {one.name for one in fields(kind)}


def make_world():
    world = World(DeviceLimits(1024 * MIB, lanes_max=1))
    for session, domain in ((1, "ada"), (2, "ben"), (3, "ada")):
        world.arrive(session, 50, 400, domain=Domain(f"user:{domain}"))
        world.confirm_all()
        world.want(session)
    world.arrive(4, 1000, 10)
    return world


def test_every_field_of_a_session_and_a_lane_is_frozen():
    assert names(FrozenSession) == names(Session)
    assert names(FrozenLane) == names(Lane) - DERIVED


def test_every_attribute_of_a_device_is_frozen():
    world = make_world()
    (device,), (frozen,) = world.engine.devices(), freeze(world.engine).devices
    assert isinstance(device, Device)
    assert set(vars(device)) - DERIVED <= {one.name for one in fields(frozen)}


def test_waiters_of_parked_lanes_are_found_again():
    world = make_world()
    thawed = thaw(freeze(world.engine))
    (before,), (after,) = world.engine.devices(), thawed.devices()
    assert before.first_parked() is not None
    assert after.first_parked()[0] == before.first_parked()[0]
    assert freeze(thawed) == freeze(world.engine)


def test_another_format_is_not_thawed():
    with pytest.raises(OperatingError, match=f"format 99: this release knows format {FORMAT}"):
        thaw(replace(freeze(make_world().engine), format=99))


def test_a_session_that_is_named_but_not_there_is_refused():
    frozen = freeze(make_world().engine)
    (device,) = frozen.devices
    with pytest.raises(OperatingError, match="77: named but not there"):
        thaw(replace(frozen, devices=(replace(device, arrivals=(SessionId(77),)),)))
