"""The engine's state as frozen values: compared by tests and replays, shown by `salus status`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from nodedaemon.core.fairness import SCALE_BITS
from nodedaemon.core.state.lanes import Device, Lane, LaneState
from nodedaemon.core.state.sessions import Session, SessionState
from nodedaemon.core.types import DeviceId, Domain, Epoch, JobClass, JobId, LaneId, SessionId

Copy = TypeVar("Copy")


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    session: SessionId
    job: JobId
    domain: Domain
    state: SessionState
    lane: LaneId | None
    persistent_bytes: int
    ephemeral_bytes: int
    job_class: JobClass
    weight: int
    remaining_ns: int | None
    service_ns: int
    virtual_service: int
    waited_ns: int
    wanted_ns: int
    iteration_count: int
    handover_count: int
    epoch: Epoch | None
    iteration_limit: int | None
    is_limited_later: bool
    offers: tuple[tuple[Epoch, SessionId], ...]
    is_stopped: bool
    is_ungated: bool


@dataclass(frozen=True, slots=True)
class LaneSnapshot:
    lane: LaneId
    domain: Domain
    state: LaneState
    held_bytes: int
    target_bytes: int
    holder: SessionId | None
    sessions: tuple[SessionId, ...]
    is_pinned: bool


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    device: DeviceId
    policy: str
    capacity_bytes: int
    persistent_bytes: int
    held_bytes: int
    is_drained: bool
    drain_reason: str | None
    lost_reason: str | None
    epoch: Epoch
    arrivals: tuple[SessionId, ...]
    lanes: tuple[LaneSnapshot, ...]
    sessions: tuple[SessionSnapshot, ...]

    @property
    def free_bytes(self) -> int:
        return self.capacity_bytes - self.persistent_bytes - self.held_bytes


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    devices: tuple[DeviceSnapshot, ...]


def copy_fields(source: object, kind: type[Copy], **computed: Any) -> Copy:
    """Make a `kind` from the `computed` fields and those that `source` has. All other fields get their defaults."""
    # The field names in order; unlike `fields`, this costs nothing, and a status request copies hundreds of sessions.
    names: tuple[str, ...] = kind.__match_args__  # type: ignore[attr-defined]
    values = {name: getattr(source, name) for name in names if name not in computed and hasattr(source, name)}
    return kind(**values, **computed)


def describe(devices: Iterable[Device]) -> EngineSnapshot:
    """Copy the state of all devices into values."""
    return EngineSnapshot(tuple(_describe_device(device) for device in devices))


def _describe_device(device: Device) -> DeviceSnapshot:
    return copy_fields(
        device,
        DeviceSnapshot,
        device=device.id,
        policy=device.limits.policy,
        capacity_bytes=device.limits.capacity_bytes,
        arrivals=tuple(device.arrivals),
        lanes=tuple(_describe_lane(lane) for lane in device.lanes.values()),
        sessions=tuple(_describe_session(session, device) for session in device.sessions.values()),
    )


def _describe_lane(lane: Lane) -> LaneSnapshot:
    holder = None if lane.holder is None else lane.holder.id
    return copy_fields(lane, LaneSnapshot, lane=lane.id, holder=holder, sessions=tuple(lane.sessions))


def _describe_session(session: Session, device: Device) -> SessionSnapshot:
    clock = device.clock
    view = session.view(clock.plain, clock.grown)
    running = clock.plain - session.granted_plain if session.is_served else 0
    return copy_fields(
        session,
        SessionSnapshot,
        session=session.id,
        lane=None if session.lane is None else session.lane.id,
        remaining_ns=None if view.remaining_ns is None else max(0, view.remaining_ns),
        service_ns=(session.service_plain + running) >> SCALE_BITS,
        virtual_service=view.virtual_service,
        offers=tuple(session.offers.items()),
    )
