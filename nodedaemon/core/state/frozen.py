"""The whole state of an engine as plain values, from which a daemon restores the engine later.

The values are numbers, strings and ids, so any format can store them. Heaps are not stored but rebuilt. A thawed engine
decides exactly as the frozen one would. `FORMAT` changes whenever a field changes its meaning; a state of another
format is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass

from msgspec import Struct

from nodedaemon.core.engine import Engine
from nodedaemon.core.errors import OperatingError
from nodedaemon.core.fairness import ServiceBook
from nodedaemon.core.ordering import Ordering, Policy
from nodedaemon.core.policies import make_policy
from nodedaemon.core.state.lanes import Device, DeviceValues, Lane, LaneValues
from nodedaemon.core.state.sessions import Session, SessionValues
from nodedaemon.core.state.snapshots import copy_fields
from nodedaemon.core.state.waiting import WaitList
from nodedaemon.core.types import DeviceLimits, JobClass, LaneId, SessionId

FORMAT = 4


@dataclass(slots=True)
class FrozenSession(SessionValues):
    """A session, with its lane by id."""

    lane: LaneId | None = None


@dataclass(slots=True)
class FrozenLane(LaneValues):
    """A lane, with its sessions by id, in order of joining."""

    sessions: tuple[SessionId, ...] = ()
    holder: SessionId | None = None


@dataclass(slots=True, kw_only=True)
class FrozenDevice(DeviceValues):
    """A device. Its arrivals, lanes and open lanes are in the order in which the engine visits them."""

    active: dict[SessionId, int]
    floor: int
    waits: dict[JobClass, tuple[tuple[SessionId, int], ...]]
    sessions: tuple[FrozenSession, ...]
    arrivals: tuple[SessionId, ...]
    lanes: tuple[FrozenLane, ...]
    open_lanes: tuple[LaneId, ...]


class FrozenEngine(Struct, frozen=True):
    format: int
    lane_count: int
    arrival_count: int
    devices: tuple[FrozenDevice, ...]


def freeze(engine: Engine) -> FrozenEngine:
    """Copy the state of the engine."""
    lane_count, arrival_count = engine.counts
    return FrozenEngine(FORMAT, lane_count, arrival_count, tuple(_freeze_device(one) for one in engine.devices()))


def thaw(frozen: FrozenEngine, policy: Callable[[DeviceLimits], Policy] = make_policy) -> Engine:
    """Restore an engine. Raises `OperatingError` for an impossible state."""
    if frozen.format != FORMAT:
        raise OperatingError(f"thaw engine: format {frozen.format}: this release reads format {FORMAT}")
    engine = Engine(policy)
    try:
        devices = [_thaw_device(one, policy) for one in frozen.devices]
    except KeyError as error:
        raise OperatingError(f"thaw engine: {error.args[0]}: referenced but missing") from error
    engine.restore(devices, frozen.lane_count, frozen.arrival_count)
    return engine


def _freeze_device(device: Device) -> FrozenDevice:
    active, floor = device.book.state()
    return copy_fields(
        device,
        FrozenDevice,
        clock=copy(device.clock),
        active=active,
        floor=floor,
        waits={job_class: waits.entries() for job_class, waits in device.waits.items()},
        running=dict(device.running),
        sessions=tuple(_freeze_session(one) for one in device.sessions.values()),
        arrivals=tuple(device.arrivals),
        lanes=tuple(_freeze_lane(one) for one in device.lanes.values()),
        open_lanes=tuple(device.open_lanes),
    )


def _freeze_session(session: Session) -> FrozenSession:
    lane = None if session.lane is None else session.lane.id
    return copy_fields(
        session, FrozenSession, lane=lane, offers=dict(session.offers), recent_steps=list(session.recent_steps)
    )


def _freeze_lane(lane: Lane) -> FrozenLane:
    holder = None if lane.holder is None else lane.holder.id
    return copy_fields(lane, FrozenLane, sessions=tuple(lane.sessions), holder=holder)


def _thaw_device(frozen: FrozenDevice, policy: Callable[[DeviceLimits], Policy]) -> Device:
    sessions = [
        copy_fields(one, Session, lane=None, offers=dict(one.offers), recent_steps=list(one.recent_steps))
        for one in frozen.sessions
    ]
    device = copy_fields(
        frozen,
        Device,
        clock=copy(frozen.clock),
        running={job_class: frozen.running.get(job_class, 0) for job_class in JobClass},
        ordering=Ordering(policy(frozen.limits)),
        book=ServiceBook.of(frozen.active, frozen.floor),
        waits={job_class: WaitList.of(frozen.waits.get(job_class, ())) for job_class in JobClass},
        sessions={session.id: session for session in sessions},
        arrivals={},
        lanes={},
        open_lanes={},
    )
    device.arrivals = {one: device.sessions[one] for one in frozen.arrivals}
    for lane in frozen.lanes:
        device.add_lane(_thaw_lane(lane, device))
    device.open_lanes = {one: device.lanes[one] for one in frozen.open_lanes}
    _index(device)
    return device


def _thaw_lane(frozen: FrozenLane, device: Device) -> Lane:
    holder = None if frozen.holder is None else device.sessions[frozen.holder]
    lane = copy_fields(frozen, Lane, device=device.id, holder=holder, sessions={})
    for one in frozen.sessions:
        lane.join(device.sessions[one])
    return lane


def _index(device: Device) -> None:
    """Rebuild the heaps of sizes and waiters, and the sessions above their charge."""
    for session in device.sessions.values():
        device.note_charge(session)
        if session.id not in device.arrivals:
            device.note_size(session)
        if session.is_queued and session.lane is not None:
            device.add_waiter(session)
