"""What goes into the engine. One frozen dataclass an event; docs/architecture.md says who sends it.

The daemon writes each event to its journal before the engine handles it, so an event carries everything that the
decision needs and nothing that only this process understands.
"""

from __future__ import annotations

from dataclasses import dataclass

from nodedaemon.core.types import DeviceId, DeviceLimits, Domain, Epoch, JobClass, JobId, LaneId, SessionId


@dataclass(frozen=True, slots=True)
class DeviceAdded:
    device: DeviceId
    limits: DeviceLimits


@dataclass(frozen=True, slots=True)
class DeviceDrained:
    """An admin wants the device empty: sessions there go on, arrivals wait."""

    device: DeviceId


@dataclass(frozen=True, slots=True)
class DeviceResumed:
    device: DeviceId


@dataclass(frozen=True, slots=True)
class DeviceLost:
    """The device does not answer or reported a fatal fault: nothing is opened or granted there until it recovers."""

    device: DeviceId
    reason: str


@dataclass(frozen=True, slots=True)
class DeviceRecovered:
    device: DeviceId


@dataclass(frozen=True, slots=True)
class LimitsChanged:
    """New limits for a device, policy included; capacity may only grow while sessions are there."""

    device: DeviceId
    limits: DeviceLimits


@dataclass(frozen=True, slots=True)
class SessionArrived:
    """A placed job (Prolog) or, without Slurm, a hello: claims its persistent bytes.

    `ephemeral_bytes` 0 means a session without lane or gate that runs by its peak, all persistent.
    """

    session: SessionId
    device: DeviceId
    job: JobId
    domain: Domain
    persistent_bytes: int
    ephemeral_bytes: int
    job_class: JobClass = JobClass.NORMAL
    weight: int = 1
    remaining_ns: int | None = None


@dataclass(frozen=True, slots=True)
class GrantWanted:
    """The session stands at a boundary, blocked in the gate."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class GrantReturned:
    """A boundary was reached and the grant given back.

    `iteration_count` iterations ran under it. `contended_count` of them started after a limit was set, by `LimitGrant`
    or with the grant itself, the first iteration of a grant not counted. `wants_next` says that it waits in the
    gate again (a lease taken back from an idle session does not). `handed_over` is the epoch of the successor that was
    started directly, as a `Revoke` had named it.
    """

    session: SessionId
    epoch: Epoch
    iteration_count: int = 1
    contended_count: int = 0
    wants_next: bool = True
    handed_over: Epoch | None = None


@dataclass(frozen=True, slots=True)
class LaneOpened:
    lane: LaneId
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class LaneReleased:
    """Every mapping is gone and the bytes are seen free."""

    lane: LaneId
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class LaneFailed:
    """The lane's memory could not be created; its bytes are free again."""

    lane: LaneId
    epoch: Epoch
    reason: str


@dataclass(frozen=True, slots=True)
class SessionStopped:
    """The process is stopped or its job suspended: it will reach no boundary until it continues."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class SessionContinued:
    session: SessionId


@dataclass(frozen=True, slots=True)
class SessionOverran:
    """The session needs more than it was admitted with; the sizes are the new totals."""

    session: SessionId
    persistent_bytes: int
    ephemeral_bytes: int


@dataclass(frozen=True, slots=True)
class SessionUngated:
    """A second concurrent session of the job appeared: this one keeps its lane for itself and is gated no more."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class SessionLeft:
    """Bye, Epilog or death. The process can write to its lane no more; its own memory may not be free yet.

    `iteration_count` ran under the grant that it still held; only accounting uses it.
    """

    session: SessionId
    iteration_count: int = 0


@dataclass(frozen=True, slots=True)
class SessionReleased:
    """The session's persistent memory is seen free."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class Ticked:
    """A moment asked for by `WakeAt` has come."""

    device: DeviceId


DeviceEvent = DeviceAdded | DeviceDrained | DeviceResumed | DeviceLost | DeviceRecovered | LimitsChanged | Ticked
LaneEvent = LaneOpened | LaneReleased | LaneFailed
SessionEvent = (
    SessionArrived
    | GrantWanted
    | GrantReturned
    | SessionStopped
    | SessionContinued
    | SessionOverran
    | SessionUngated
    | SessionLeft
    | SessionReleased
)
Event = DeviceEvent | LaneEvent | SessionEvent
