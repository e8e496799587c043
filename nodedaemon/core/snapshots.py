"""The engine's state as frozen values: compared by tests and replays, shown by `salus status`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nodedaemon.core.fairness import SCALE_BITS
from nodedaemon.core.lanes import Device, Lane, LaneState
from nodedaemon.core.sessions import Session, SessionState
from nodedaemon.core.types import DeviceId, Domain, Epoch, JobClass, JobId, LaneId, SessionId


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


def describe(devices: Iterable[Device]) -> EngineSnapshot:
    """Copy the state of all devices into values."""
    return EngineSnapshot(tuple(_describe_device(device) for device in devices))


def _describe_device(device: Device) -> DeviceSnapshot:
    return DeviceSnapshot(
        device=device.id,
        policy=device.limits.policy,
        capacity_bytes=device.limits.capacity_bytes,
        persistent_bytes=device.persistent_bytes,
        held_bytes=device.held_bytes,
        is_drained=device.is_drained,
        lost_reason=device.lost_reason,
        epoch=Epoch(device.epoch),
        arrivals=tuple(device.arrivals),
        lanes=tuple(_describe_lane(lane) for lane in device.lanes.values()),
        sessions=tuple(_describe_session(session, device) for session in device.sessions.values()),
    )


def _describe_lane(lane: Lane) -> LaneSnapshot:
    return LaneSnapshot(
        lane=lane.id,
        domain=lane.domain,
        state=lane.state,
        held_bytes=lane.held_bytes,
        target_bytes=lane.target_bytes,
        holder=None if lane.holder is None else lane.holder.id,
        sessions=tuple(lane.sessions),
        is_pinned=lane.is_pinned,
    )


def _describe_session(session: Session, device: Device) -> SessionSnapshot:
    clock = device.clock
    view = session.view(clock.plain, clock.grown)
    running = clock.plain - session.granted_plain if session.is_served else 0
    return SessionSnapshot(
        session=session.id,
        job=session.job,
        domain=session.domain,
        state=session.state,
        lane=None if session.lane is None else session.lane.id,
        persistent_bytes=session.persistent_bytes,
        ephemeral_bytes=session.ephemeral_bytes,
        job_class=session.job_class,
        weight=session.weight,
        remaining_ns=None if view.remaining_ns is None else max(0, view.remaining_ns),
        service_ns=(session.service_plain + running) >> SCALE_BITS,
        virtual_service=view.virtual_service,
        waited_ns=session.waited_ns,
        wanted_ns=session.wanted_ns,
        iteration_count=session.iteration_count,
        handover_count=session.handover_count,
        epoch=session.epoch,
        iteration_limit=session.iteration_limit,
        is_limited_later=session.is_limited_later,
        offers=tuple(session.offers.items()),
        is_stopped=session.is_stopped,
        is_ungated=session.is_ungated,
    )
