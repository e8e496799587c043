"""What comes out of the engine. Commands compare by value and are safe to carry out twice.

A command about a grant or a lane's memory carries its epoch, so an answer that comes late harms nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

from nodedaemon.core.types import DeviceId, Domain, Epoch, JobId, LaneId, SessionId, Shortfall


@dataclass(frozen=True, slots=True)
class AdmitSession:
    """The session's persistent bytes are free now: the Prolog may return, the job may allocate."""

    session: SessionId
    persistent_bytes: int


@dataclass(frozen=True, slots=True)
class BindSession:
    """The lane that the session uses from its next grant on."""

    session: SessionId
    lane: LaneId


@dataclass(frozen=True, slots=True)
class OpenLane:
    """Create fresh, zeroed lane memory; answer `LaneOpened` or `LaneFailed`."""

    lane: LaneId
    device: DeviceId
    domain: Domain
    bytes: int
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class ReleaseLane:
    """Have every session stash and unmap, then give the bytes back; answer `LaneReleased` once they are seen free."""

    lane: LaneId
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class CloseLane:
    """The lane is gone; it holds no bytes and no session."""

    lane: LaneId


@dataclass(frozen=True, slots=True)
class Grant:
    """Leave to run iterations in the lane: until a revoke, and at most `iteration_limit` of them where it is given."""

    session: SessionId
    lane: LaneId
    epoch: Epoch
    iteration_limit: int | None = None


@dataclass(frozen=True, slots=True)
class LimitGrant:
    """From now on at most `iteration_count` further iterations may start under this grant."""

    session: SessionId
    epoch: Epoch
    iteration_count: int


@dataclass(frozen=True, slots=True)
class Revoke:
    """Return the grant at the next boundary; start the successor directly where one is named.

    A later `Revoke` for the same epoch replaces the successor.
    """

    session: SessionId
    epoch: Epoch
    successor: SessionId | None = None
    successor_epoch: Epoch | None = None


@dataclass(frozen=True, slots=True)
class ReleaseSession:
    """Answer `SessionReleased` once the session's persistent memory is seen free."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class EndSession:
    session: SessionId
    reason: str


@dataclass(frozen=True, slots=True)
class WarnSession:
    session: SessionId
    reason: str


@dataclass(frozen=True, slots=True)
class AllowOverrun:
    session: SessionId
    persistent_bytes: int
    ephemeral_bytes: int


@dataclass(frozen=True, slots=True)
class RefuseOverrun:
    """The allocation that overran fails in the job that made it; nobody else is touched."""

    session: SessionId
    shortfall: Shortfall


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send `Ticked(device)` at that time; a later `WakeAt` of the same device replaces it."""

    device: DeviceId
    at_ns: int


@dataclass(frozen=True, slots=True)
class ReportOverdue:
    """A session did not return its grant in time; `salus why` and the log show it."""

    session: SessionId
    job: JobId
    waited_ns: int


Command = (
    AdmitSession
    | BindSession
    | OpenLane
    | ReleaseLane
    | CloseLane
    | Grant
    | LimitGrant
    | Revoke
    | ReleaseSession
    | EndSession
    | WarnSession
    | AllowOverrun
    | RefuseOverrun
    | WakeAt
    | ReportOverdue
)
