"""The life of a single session, command by command."""

from __future__ import annotations

from nodedaemon.core import commands as cmd
from nodedaemon.core.types import MIB, DeviceLimits, Domain
from tests.support.engine_world import DEVICE, World

LIMITS = DeviceLimits(capacity_bytes=1000 * MIB, policy="fair")


def test_the_first_session_is_admitted_and_gets_a_lane_of_its_own() -> None:
    world = World(LIMITS)
    assert world.arrive(1, 100, 300) == [
        cmd.AdmitSession(1, 100 * MIB),
        cmd.BindSession(1, 1),
        cmd.OpenLane(1, DEVICE, Domain("user:ada"), 300 * MIB, 1),
    ]
    world.confirm_all()
    assert world.want(1) == [cmd.Grant(1, 1, 2)]


def test_the_device_is_empty_after_the_last_session_has_left() -> None:
    world = World(LIMITS)
    world.arrive(1, 100, 300)
    world.confirm_all()
    world.want(1)
    world.leave(1)
    world.confirm_all()
    (device,) = world.engine.snapshot().devices
    assert (device.persistent_bytes, device.held_bytes, device.lanes, device.sessions) == (0, 0, (), ())
