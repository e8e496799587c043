"""The engine's input: one immutable value per event. docs/architecture.md says who sends each event.

The daemon writes each event to its journal before the engine handles it. So an event carries everything that the
decision needs, and nothing that only this process understands.
"""

from __future__ import annotations

from msgspec import Struct

from nodedaemon.core.types import DeviceId, DeviceLimits, Domain, Epoch, JobClass, JobId, LaneId, SessionId


class AboutDevice(Struct, frozen=True):
    device: DeviceId


class DeviceAdded(AboutDevice, frozen=True):
    limits: DeviceLimits


class DeviceDrained(AboutDevice, frozen=True):
    """An admin wants the device empty. Its sessions continue; arrivals wait."""

    reason: str = ""


class DeviceResumed(AboutDevice, frozen=True):
    """An admin opens a drained device again."""


class DeviceLost(AboutDevice, frozen=True):
    """The device does not answer or reported a fatal fault. No lane opens and no grant is issued until it recovers."""

    reason: str


class DeviceRecovered(AboutDevice, frozen=True):
    """A lost device answers again."""


class LimitsChanged(AboutDevice, frozen=True):
    """The device has new limits, policy included. The capacity cannot fall below the bytes in use."""

    limits: DeviceLimits


class Ticked(AboutDevice, frozen=True):
    """The time of a `WakeAt` has come."""


class AboutLane(Struct, frozen=True):
    lane: LaneId
    epoch: Epoch


class LaneOpened(AboutLane, frozen=True):
    """The memory that an `OpenLane` asked for exists."""


class LaneFailed(AboutLane, frozen=True):
    """The lane's memory could not be created. Its bytes are free again."""

    reason: str


class LaneReleased(AboutLane, frozen=True):
    """No process maps the lane's memory any more, and the device reports its bytes as free."""


class AboutSession(Struct, frozen=True):
    session: SessionId


class SessionArrived(AboutSession, frozen=True):
    """Slurm placed a job here (Prolog) or, without Slurm, a process connected. The session claims its persistent bytes.

    With `ephemeral_bytes` 0 the session has no lane and no gate: its persistent bytes are its peak. `is_placed` says
    that Slurm placed the job and charged it by the memory rule, so it must never wait for another job to end.
    """

    device: DeviceId
    job: JobId
    domain: Domain
    persistent_bytes: int
    ephemeral_bytes: int
    job_class: JobClass = JobClass.NORMAL
    weight: int = 1
    remaining_ns: int | None = None
    is_placed: bool = False


class GrantWanted(AboutSession, frozen=True):
    """The session is at a boundary, blocked in the gate."""


class GrantReturned(AboutSession, frozen=True):
    """The session reached a boundary and returned its grant.

    `iteration_count` iterations ran under the grant. `contended_count` of them started after a limit was set, either by
    `LimitGrant` or by the grant itself; the first iteration of a grant never counts. `wants_next` says that the session
    waits in the gate again; it is False, for example, if an idle session lost its lease. If the session started the
    successor of a `Revoke` directly, `handed_over` is the epoch of that successor.
    """

    epoch: Epoch
    iteration_count: int = 1
    contended_count: int = 0
    wants_next: bool = True
    handed_over: Epoch | None = None


class SessionStopped(AboutSession, frozen=True):
    """The process is stopped or its job suspended. It reaches no boundary until it continues.

    `is_suspended` says that Slurm suspended the job. It is also True until Slurm has been asked; a second event then
    corrects it. A session that Slurm suspended is never ended to get its memory back.
    """

    is_suspended: bool = False


class SessionContinued(AboutSession, frozen=True):
    """The stopped process runs again."""


class SessionOverran(AboutSession, frozen=True):
    """The session needs more memory than it was admitted with. The sizes are the new totals."""

    persistent_bytes: int
    ephemeral_bytes: int


class SessionUngated(AboutSession, frozen=True):
    """The session is no longer gated, because its job has a second session. From now on it keeps its lane to itself.

    If that would leave too little memory for the iterations of other jobs, the session stays gated. A session with
    `has_own_memory` never uses a lane: its ephemeral bytes above the lane reserve become persistent bytes.
    """

    has_own_memory: bool = False


class SessionLeft(AboutSession, frozen=True):
    """The process said goodbye, ended or was ended by the Epilog. It can no longer write to its lane.

    Its own memory may not be free yet. `iteration_count` iterations ran under the grant that it still held; only
    accounting uses this number.
    """

    iteration_count: int = 0


class SessionReleased(AboutSession, frozen=True):
    """The device reports the session's persistent memory as free."""


DeviceEvent = DeviceAdded | DeviceDrained | DeviceResumed | DeviceLost | DeviceRecovered | LimitsChanged | Ticked
LaneEvent = LaneOpened | LaneReleased | LaneFailed
#: Events about a session that has arrived.
SessionEvent = (
    GrantWanted
    | GrantReturned
    | SessionStopped
    | SessionContinued
    | SessionOverran
    | SessionUngated
    | SessionLeft
    | SessionReleased
)
Event = DeviceEvent | LaneEvent | SessionArrived | SessionEvent
