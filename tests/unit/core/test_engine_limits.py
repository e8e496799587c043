"""Devices and their limits, refused requests, and late events."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodedaemon.core import commands as cmd
from nodedaemon.core import events as ev
from nodedaemon.core.engine import Engine
from nodedaemon.core.errors import PeerError, RequestError
from nodedaemon.core.fairness import ONE_NS
from nodedaemon.core.types import MIB, MILLISECOND_NS, SECOND_NS, DeviceId, DeviceLimits, Domain, JobId
from tests.support.engine_world import DEVICE, World, make_world

ADA = Domain("user:ada")
LIMITS = DeviceLimits(1000 * MIB, lane_reserve_bytes=300 * MIB)


def make(count: int, **limits: object) -> World:
    return make_world(count, **{"lane_reserve_bytes": LIMITS.lane_reserve_bytes, **limits})


def change(world: World, **limits: object) -> list[cmd.Command]:
    return world.send(ev.LimitsChanged(DEVICE, replace(world.limits, **limits)))  # type: ignore[arg-type]


# Devices


def test_a_drained_device_admits_no_session_and_runs_those_it_has() -> None:
    world = make(1)
    assert world.send(ev.DeviceDrained(DEVICE)) == []
    assert world.arrive(2, 100, 100) == []
    assert world.want(1) == [cmd.Grant(1, 1, 2)]
    assert world.send(ev.DeviceResumed(DEVICE)) == [
        cmd.AdmitSession(2, 100 * MIB),
        cmd.BindSession(2, 2),
        cmd.OpenLane(2, DEVICE, ADA, 100 * MIB, 3),
    ]


def test_nothing_starts_on_a_lost_device_until_it_recovers() -> None:
    world = make(1)
    assert world.send(ev.DeviceLost(DEVICE, "Xid 79")) == []
    assert world.arrive(2, 100, 100) == []
    assert world.want(1) == []
    assert world.engine.snapshot().devices[0].lost_reason == "Xid 79"
    assert world.send(ev.DeviceRecovered(DEVICE)) == [
        cmd.AdmitSession(2, 100 * MIB),
        cmd.BindSession(2, 2),
        cmd.OpenLane(2, DEVICE, ADA, 100 * MIB, 2),
        cmd.Grant(1, 1, 3),
    ]


def test_devices_are_independent_of_each_other() -> None:
    world = make(1)
    world.want(1)
    other = DeviceId("gpu1")
    assert world.send(ev.DeviceAdded(other, LIMITS)) == []
    assert world.send(ev.SessionArrived(9, other, JobId("9"), ADA, 50 * MIB, 200 * MIB)) == [
        cmd.AdmitSession(9, 50 * MIB),
        cmd.BindSession(9, 2),
        cmd.OpenLane(2, other, ADA, 200 * MIB, 1),
    ]


def test_a_device_is_added_once() -> None:
    world = make(0)
    with pytest.raises(RequestError, match="device refused: gpu0: it already exists"):
        world.send(ev.DeviceAdded(DEVICE, LIMITS))


def test_an_event_for_an_unknown_device_is_refused() -> None:
    with pytest.raises(RequestError, match="device unknown: gpu0: not on this node"):
        Engine().handle(ev.Ticked(DEVICE), 0)


# Limits


def test_a_policy_changes_while_jobs_run_and_waiters_follow_the_new_order() -> None:
    world = make(0, policy="fifo", lanes_max=1)
    for session, remaining_ns in ((1, 300), (2, 200), (3, 100)):
        world.arrive(session, 50, 200, remaining_ns=remaining_ns)
    world.confirm_all()
    world.want(1, 2, 3)
    assert change(world, policy="srtf")[0] == cmd.Revoke(1, 2)
    world.boundary(1)
    assert set(world.grants) == {3}
    assert world.engine.snapshot().devices[0].policy == "srtf"


def test_a_policy_change_keeps_stopped_waiters_and_parked_lanes() -> None:
    world = World(LIMITS)
    world.arrive(1, 50, 700)
    world.arrive(2, 50, 700, domain=Domain("user:ben"))
    world.arrive(3, 50, 700, domain=Domain("user:ben"))
    world.confirm_all()
    world.want(1, 2, 3)
    world.send(ev.SessionStopped(3))
    change(world, policy="pack", domain_quantum_ns=0)
    world.grants.pop(1)
    assert world.send(ev.GrantReturned(1, 2, wants_next=False)) == [cmd.ReleaseLane(1, 3)]


def test_a_change_to_a_policy_that_runs_one_session_revokes_all_others() -> None:
    world = make(2, policy="pack")
    world.want(2, 1)
    assert change(world, policy="fifo") == [cmd.Revoke(2, 3), cmd.WakeAt(DEVICE, 60 * SECOND_NS)]


def test_an_unknown_policy_is_refused_and_the_old_one_stays() -> None:
    world = make(1)
    with pytest.raises(RequestError, match="policy lifo: unknown"):
        change(world, policy="lifo")
    assert world.engine.snapshot().devices[0].policy == "fair"


def test_the_capacity_may_shrink_only_to_the_bytes_in_use() -> None:
    world = make(2)
    assert change(world, capacity_bytes=500 * MIB) == []
    with pytest.raises(RequestError, match="limits refused: device gpu0: 524288000 bytes are in use"):
        change(world, capacity_bytes=499 * MIB)
    assert world.engine.snapshot().devices[0].capacity_bytes == 500 * MIB


def test_more_capacity_admits_waiting_arrivals() -> None:
    world = make(2)
    assert world.arrive(3, 750, 100) == []
    world.limits = replace(world.limits, capacity_bytes=2000 * MIB)
    assert change(world)[0] == cmd.AdmitSession(3, 750 * MIB)


def test_the_reserve_may_be_raised_at_any_time_and_lowered_only_on_an_empty_device() -> None:
    world = make(1)
    assert change(world, lane_reserve_bytes=400 * MIB) == []
    with pytest.raises(RequestError, match="the lane reserve may be lowered only on a drained device"):
        change(world, lane_reserve_bytes=300 * MIB)
    world.leave(1)
    world.confirm_all()
    assert change(world, lane_reserve_bytes=0) == []


def test_a_new_half_life_keeps_the_order_of_sessions() -> None:
    world = make(2, lanes_max=1, service_half_life_ns=MILLISECOND_NS)
    world.want(1)
    world.tick(10 * MILLISECOND_NS)
    world.want(2)
    world.now_ns = 20 * MILLISECOND_NS
    world.boundary(1)
    (device,) = world.engine.snapshot().devices
    ahead, behind = (one.virtual_service for one in device.sessions)
    change(world, service_half_life_ns=SECOND_NS)
    (device,) = world.engine.snapshot().devices
    scaled = [one.virtual_service for one in device.sessions]
    assert scaled == [ahead >> 20, behind >> 20]
    assert scaled[0] > scaled[1] > 0
    (live,) = world.engine.devices()
    assert live.clock.growth() == ONE_NS
    change(world, service_half_life_ns=None)
    assert live.clock.doublings() == 0


# Refused and late events


def test_an_id_is_never_used_twice() -> None:
    world = make(1)
    with pytest.raises(PeerError, match="session refused: 1: that id is in use"):
        world.arrive(1, 50, 50)


@pytest.mark.parametrize(("persistent", "ephemeral", "weight"), [(-1, 0, 1), (0, -1, 1), (0, 0, 0)])
def test_negative_sizes_and_a_weight_below_one_are_refused(persistent: int, ephemeral: int, weight: int) -> None:
    world = make(0)
    with pytest.raises(PeerError, match="sizes must not be negative, and the weight must be at least 1"):
        world.arrive(1, persistent, ephemeral, weight=weight)
    assert world.engine.snapshot().devices[0].sessions == ()


def test_a_session_that_has_gone_cannot_want_a_grant() -> None:
    world = make(1)
    world.leave(1)
    world.confirm_all()
    with pytest.raises(PeerError, match="session unknown: 1: gone or never arrived"):
        world.want(1)


def test_late_events_of_a_session_that_has_gone_change_nothing() -> None:
    world = make(1)
    world.leave(1)
    world.confirm_all()
    for late in (ev.SessionLeft(1), ev.SessionReleased(1), ev.GrantReturned(1, 2), ev.SessionStopped(1)):
        assert world.send(late) == []


def test_leaving_twice_has_no_further_effect() -> None:
    world = make(1)
    world.send(ev.SessionLeft(1))
    assert world.send(ev.SessionLeft(1)) == []
    assert world.send(ev.SessionUngated(1)) == []


def test_a_session_that_leaves_before_admission_leaves_nothing_behind() -> None:
    world = make(1)
    world.send(ev.DeviceDrained(DEVICE))
    world.arrive(2, 50, 50)
    assert world.send(ev.SessionLeft(2)) == []
    assert [one.session for one in world.engine.snapshot().devices[0].sessions] == [1]


def test_the_memory_of_a_session_that_has_not_left_is_not_released() -> None:
    world = make(1)
    with pytest.raises(PeerError, match="release refused: session 1 of job 1: it is still idle"):
        world.send(ev.SessionReleased(1))


def test_an_arrival_that_can_never_fit_is_skipped_and_a_smaller_one_is_admitted() -> None:
    world = make(2)
    assert world.arrive(3, 900, 100) == []
    assert world.arrive(4, 50, 50)[0] == cmd.AdmitSession(4, 50 * MIB)
