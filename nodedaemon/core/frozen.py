"""The whole state of an engine as plain values, from which a daemon restores the engine later.

The values are numbers, texts and ids, so any format can carry them. Heaps are rebuilt from the values that they index.
A thawed engine decides exactly as the frozen one would. `FORMAT` changes whenever a field changes its meaning; a state
of another format is not thawed.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass

from nodedaemon.core.engine import Engine
from nodedaemon.core.errors import OperatingError
from nodedaemon.core.fairness import ServiceBook, ServiceClock
from nodedaemon.core.lanes import Device, Lane, LaneState, LaneValues
from nodedaemon.core.ordering import Ordering, Policy
from nodedaemon.core.policies import make_policy
from nodedaemon.core.sessions import Session, SessionState, SessionValues
from nodedaemon.core.snapshots import copy_fields
from nodedaemon.core.types import DeviceId, DeviceLimits, JobClass, LaneId, SessionId
from nodedaemon.core.waiting import WaitList

FORMAT = 2


@dataclass(slots=True)
class FrozenSession(SessionValues):
    """A session, with its lane by id."""

    lane: LaneId | None = None


@dataclass(slots=True)
class FrozenLane(LaneValues):
    """A lane, with its sessions by id, in order of joining."""

    sessions: tuple[SessionId, ...] = ()
    holder: SessionId | None = None


@dataclass(frozen=True, slots=True)
class FrozenDevice:
    """As `lanes.Device`; the orders of arrivals, lanes and open lanes are those in which the engine looks at them."""

    id: DeviceId
    limits: DeviceLimits
    is_drained: bool
    lost_reason: str | None
    persistent_bytes: int
    held_bytes: int
    releasing_bytes: int
    epoch: int
    wait_order: int
    wake_ns: int | None
    clock: ServiceClock
    active: dict[SessionId, int]
    floor: int
    waits: dict[JobClass, tuple[tuple[SessionId, int], ...]]
    running: dict[JobClass, int]
    sessions: tuple[FrozenSession, ...]
    arrivals: tuple[SessionId, ...]
    lanes: tuple[FrozenLane, ...]
    open_lanes: tuple[LaneId, ...]


@dataclass(frozen=True, slots=True)
class FrozenEngine:
    format: int
    lane_count: int
    arrival_count: int
    devices: tuple[FrozenDevice, ...]


#: Fields that a device has with the same values.
_DEVICE_VALUES = {"is_drained", "lost_reason", "wake_ns", "persistent_bytes", "held_bytes", "releasing_bytes"}
_DEVICE_VALUES |= {"epoch", "wait_order"}


def freeze(engine: Engine) -> FrozenEngine:
    """Copy the state of the engine."""
    lane_count, arrival_count = engine.counts
    return FrozenEngine(FORMAT, lane_count, arrival_count, tuple(_freeze_device(one) for one in engine.devices()))


def thaw(frozen: FrozenEngine, policy: Callable[[DeviceLimits], Policy] = make_policy) -> Engine:
    """Restore an engine. Raises `OperatingError` for an impossible state."""
    if frozen.format != FORMAT:
        raise OperatingError(f"thaw engine: format {frozen.format}: this release knows format {FORMAT}")
    engine = Engine(policy)
    try:
        devices = [_thaw_device(one, policy) for one in frozen.devices]
    except KeyError as error:
        raise OperatingError(f"thaw engine: {error.args[0]}: named but not there") from error
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
    return copy_fields(session, FrozenSession, lane=lane, offers=dict(session.offers), story=list(session.story))


def _freeze_lane(lane: Lane) -> FrozenLane:
    holder = None if lane.holder is None else lane.holder.id
    return copy_fields(lane, FrozenLane, sessions=tuple(lane.sessions), holder=holder)


def _thaw_device(frozen: FrozenDevice, policy: Callable[[DeviceLimits], Policy]) -> Device:
    device = Device(frozen.id, frozen.limits, Ordering(policy(frozen.limits)), frozen.clock.now_ns)
    for name in _DEVICE_VALUES:
        setattr(device, name, getattr(frozen, name))
    device.clock = copy(frozen.clock)
    device.book = ServiceBook.of(frozen.active, frozen.floor)
    device.waits = {job_class: WaitList.of(frozen.waits.get(job_class, ())) for job_class in JobClass}
    device.running = {job_class: frozen.running.get(job_class, 0) for job_class in JobClass}
    for one in frozen.sessions:
        session = copy_fields(one, Session, lane=None, offers=dict(one.offers), story=list(one.story))
        device.sessions[session.id] = session
    device.arrivals = {one: device.sessions[one] for one in frozen.arrivals}
    for lane in frozen.lanes:
        device.add_lane(_thaw_lane(lane, device))
    device.open_lanes = {one: device.lanes[one] for one in frozen.open_lanes}
    _index(device)
    return device


def _thaw_lane(frozen: FrozenLane, device: Device) -> Lane:
    holder = None if frozen.holder is None else device.sessions[frozen.holder]
    lane = copy_fields(frozen, Lane, device=device.id, holder=holder, sessions={}, waiters=[], _sizes=[])
    for one in frozen.sessions:
        lane.join(device.sessions[one])
    return lane


def _index(device: Device) -> None:
    """Rebuild the heaps of sizes and waiters."""
    for session in device.sessions.values():
        if session.id not in device.arrivals:
            device.note_size(session)
        if session.state is SessionState.WAITING and not session.is_stopped and session.lane is not None:
            session.lane.add_waiter(session.place, session)
    for lane in device.lanes.values():
        if lane.state is LaneState.PARKED:
            device.note_parked(lane)
