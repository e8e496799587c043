"""The invariants of the engine, which hold after every event under every policy.

`check_device` takes constant time. `check` recounts everything and runs after every event in tests. A failure is a bug:
an assertion that is never caught.
"""

from __future__ import annotations

from nodedaemon.core.engine import Engine
from nodedaemon.core.state.lanes import Device, Lane, LaneState
from nodedaemon.core.state.sessions import Session, SessionState
from nodedaemon.core.types import Epoch


def check_device(device: Device) -> None:
    """The sums fit the device: the memory rule, in constant time."""
    assert device.free_bytes >= 0, f"device {device.id}: {-device.free_bytes} bytes promised twice"
    assert device.persistent_bytes >= 0, f"device {device.id}: persistent bytes below zero"
    assert 0 <= device.releasing_bytes <= device.held_bytes, f"device {device.id}: releasing more than is held"


def check(engine: Engine, epochs: dict[str, Epoch] | None = None) -> None:
    """Recount every sum and check every rule. `epochs` carries the last epochs from call to call: they only grow."""
    for device in engine.devices():
        check_device(device)
        _check_sums(device)
        for lane in device.lanes.values():
            _check_lane(device, lane)
        for session in device.sessions.values():
            _check_session(device, session)
        if epochs is not None:
            assert epochs.get(device.id, 0) <= device.epoch, f"device {device.id}: epoch went back"
            epochs[device.id] = Epoch(device.epoch)


def _check_sums(device: Device) -> None:
    admitted = [one for one in device.sessions.values() if one.state is not SessionState.ARRIVING]
    assert sum(one.persistent_bytes for one in admitted) == device.persistent_bytes
    assert sum(lane.held_bytes for lane in device.lanes.values()) == device.held_bytes
    releasing = [lane for lane in device.lanes.values() if lane.state is LaneState.RELEASING]
    assert sum(lane.held_bytes for lane in releasing) == device.releasing_bytes
    served = [one for one in device.sessions.values() if one.is_served]
    assert len(served) == device.clock.busy_count == sum(device.running.values())
    waiting_count = sum(1 for one in device.sessions.values() if one.is_queued)
    assert waiting_count == sum(len(waits) for waits in device.waits.values())
    assert set(device.open_lanes) == {one.id for one in device.lanes.values() if one.state is not LaneState.PARKED}
    assert set(device.arrivals) == set(device.sessions) - {one.id for one in admitted}


def _check_lane(device: Device, lane: Lane) -> None:
    subject = f"lane {lane.id} of device {device.id}"
    assert (lane.held_bytes == 0) == (lane.state is LaneState.PARKED), subject
    assert lane.target_bytes == max((one.ephemeral_bytes for one in lane.sessions.values()), default=0), subject
    assert all(one.domain == lane.domain for one in lane.sessions.values()), f"{subject}: two domains in one lane"
    holders = [one for one in lane.sessions.values() if one.is_holding]
    assert len(holders) <= 1, f"{subject}: two iterations at a time"
    assert lane.holder is (holders[0] if holders else None), subject
    if lane.holder is not None:
        assert lane.state is LaneState.OPEN, f"{subject}: granted in a lane that is {lane.state}"
        assert lane.holder.granted_bytes <= lane.held_bytes, f"{subject}: its holder does not fit"
    # A lost device releases nothing until it recovers.
    if not lane.sessions and device.lost_reason is None:
        assert lane.state is LaneState.RELEASING, f"{subject}: empty and {lane.state}"


def _check_session(device: Device, session: Session) -> None:
    subject = f"session {session.id} of job {session.job} ({session.state})"
    has_lane = session.state not in (SessionState.ARRIVING, SessionState.UNGATED, SessionState.LEAVING)
    assert (session.lane is not None) == has_lane, subject
    if session.lane is not None:
        assert session.lane.sessions.get(session.id) is session, subject
        assert device.lanes.get(session.lane.id) is session.lane, subject
    assert (session.epoch is not None) == session.is_holding, subject
