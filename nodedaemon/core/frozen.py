"""The whole state of an engine as plain values, from which a daemon restores the engine later.

The values are numbers, texts and ids, so any format can carry them. Heaps are rebuilt from the values that they index.
A thawed engine decides exactly as the frozen one would. `FORMAT` changes whenever a field changes its meaning; a state
of another format is not thawed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from nodedaemon.core.engine import Engine
from nodedaemon.core.errors import OperatingError
from nodedaemon.core.fairness import ServiceBook
from nodedaemon.core.lanes import Device, Lane, LaneState
from nodedaemon.core.ordering import Ordering, Policy
from nodedaemon.core.policies import make_policy
from nodedaemon.core.sessions import Place, Session, SessionState
from nodedaemon.core.types import DeviceId, DeviceLimits, Domain, Epoch, JobClass, JobId, LaneId, SessionId
from nodedaemon.core.waiting import WaitList

FORMAT = 2


@dataclass(frozen=True, slots=True)
class FrozenSession:
    """As `sessions.Session`, with its lane by id."""

    id: SessionId
    job: JobId
    domain: Domain
    persistent_bytes: int
    ephemeral_bytes: int
    job_class: JobClass
    weight: int
    remaining_ns: int | None
    arrival_order: int
    arrived_ns: int
    state: SessionState
    lane: LaneId | None
    is_stopped: bool
    is_ungated: bool
    wanted_ns: int
    wait_order: int
    place: Place
    epoch: Epoch | None
    is_served: bool
    granted_bytes: int
    iteration_limit: int | None
    is_limited_later: bool
    granted_plain: int
    granted_grown: int
    revoked_ns: int
    is_reported: bool
    successor: SessionId | None
    offers: dict[Epoch, SessionId]
    service_plain: int
    virtual: int
    iteration_count: int
    handover_count: int
    waited_ns: int
    story: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FrozenLane:
    """As `lanes.Lane`, with its sessions by id, in order of joining."""

    id: LaneId
    domain: Domain
    state: LaneState
    held_bytes: int
    epoch: Epoch
    sessions: tuple[SessionId, ...]
    holder: SessionId | None
    is_pinned: bool
    opened_ns: int
    returned_ns: int
    last_class: JobClass
    retry_ns: int


@dataclass(frozen=True, slots=True)
class FrozenClock:
    """As `fairness.ServiceClock`."""

    now_ns: int
    start_ns: int
    half_life_ns: int | None
    busy_count: int
    plain: int
    grown: int


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
    clock: FrozenClock
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


_CLOCK = tuple(one.name for one in fields(FrozenClock))
_SESSION = tuple(one.name for one in fields(FrozenSession) if one.name not in ("lane", "offers", "story"))
_LANE = tuple(one.name for one in fields(FrozenLane) if one.name not in ("sessions", "holder"))
_DEVICE = ("is_drained", "lost_reason", "persistent_bytes", "held_bytes", "releasing_bytes", "epoch", "wait_order")


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


def _pick(source: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


def _freeze_device(device: Device) -> FrozenDevice:
    active, floor = device.book.state()
    return FrozenDevice(
        id=device.id,
        limits=device.limits,
        wake_ns=device.wake_ns,
        clock=FrozenClock(**_pick(device.clock, _CLOCK)),
        active=active,
        floor=floor,
        waits={job_class: waits.entries() for job_class, waits in device.waits.items()},
        running=dict(device.running),
        sessions=tuple(_freeze_session(one) for one in device.sessions.values()),
        arrivals=tuple(device.arrivals),
        lanes=tuple(_freeze_lane(one) for one in device.lanes.values()),
        open_lanes=tuple(device.open_lanes),
        **_pick(device, _DEVICE),
    )


def _freeze_session(session: Session) -> FrozenSession:
    return FrozenSession(
        lane=None if session.lane is None else session.lane.id,
        offers=dict(session.offers),
        story=tuple(session.story),
        **_pick(session, _SESSION),
    )


def _freeze_lane(lane: Lane) -> FrozenLane:
    holder = None if lane.holder is None else lane.holder.id
    return FrozenLane(sessions=tuple(lane.sessions), holder=holder, **_pick(lane, _LANE))


def _thaw_device(frozen: FrozenDevice, policy: Callable[[DeviceLimits], Policy]) -> Device:
    device = Device(frozen.id, frozen.limits, Ordering(policy(frozen.limits)), frozen.clock.now_ns)
    for name in _DEVICE:
        setattr(device, name, getattr(frozen, name))
    for name in _CLOCK:
        setattr(device.clock, name, getattr(frozen.clock, name))
    device.wake_ns = frozen.wake_ns
    device.book = ServiceBook.of(frozen.active, frozen.floor)
    device.waits = {job_class: WaitList.of(frozen.waits.get(job_class, ())) for job_class in JobClass}
    device.running = {job_class: frozen.running.get(job_class, 0) for job_class in JobClass}
    for one in frozen.sessions:
        session = Session(offers=dict(one.offers), story=list(one.story), **_pick(one, _SESSION))
        device.sessions[session.id] = session
    device.arrivals = {one: device.sessions[one] for one in frozen.arrivals}
    for lane in frozen.lanes:
        device.add_lane(_thaw_lane(lane, device))
    device.open_lanes = {one: device.lanes[one] for one in frozen.open_lanes}
    _index(device)
    return device


def _thaw_lane(frozen: FrozenLane, device: Device) -> Lane:
    lane = Lane(device=device.id, **_pick(frozen, _LANE))
    for one in frozen.sessions:
        lane.join(device.sessions[one])
    lane.holder = None if frozen.holder is None else device.sessions[frozen.holder]
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
