"""A frozen engine holds every field of the live state, and an impossible state is refused."""

from dataclasses import fields, replace

import msgspec
import pytest

from nodedaemon.core.errors import OperatingError
from nodedaemon.core.state.frozen import FORMAT, FrozenDevice, FrozenLane, FrozenSession, freeze, thaw
from nodedaemon.core.state.lanes import Device, Lane
from nodedaemon.core.state.sessions import Session
from nodedaemon.core.types import MIB, DeviceLimits, Domain, SessionId
from tests.support.engine_world import World

#: Heaps, maps and references that are rebuilt from the other fields.
DERIVED = {"device", "waiters", "_sizes", "_parked", "domains", "ordering", "book", "over_charge"}


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


def test_every_field_of_the_live_state_is_frozen():
    assert names(FrozenSession) == names(Session)
    assert names(FrozenLane) == names(Lane) - DERIVED
    # The service book is stored as its two values.
    assert names(FrozenDevice) == names(Device) - DERIVED | {"active", "floor"}


def test_waiters_of_parked_lanes_are_found_again():
    world = make_world()
    thawed = thaw(freeze(world.engine))
    (before,), (after,) = world.engine.devices(), thawed.devices()
    assert before.first_parked() is not None
    assert after.first_parked()[0] == before.first_parked()[0]
    assert freeze(thawed) == freeze(world.engine)


def test_another_format_is_not_thawed():
    with pytest.raises(OperatingError, match=f"format 99: this release reads format {FORMAT}"):
        thaw(msgspec.structs.replace(freeze(make_world().engine), format=99))


def test_a_reference_to_a_missing_session_is_refused():
    frozen = freeze(make_world().engine)
    (device,) = frozen.devices
    with pytest.raises(OperatingError, match="77: referenced but missing"):
        thaw(msgspec.structs.replace(frozen, devices=(replace(device, arrivals=(SessionId(77),)),)))
