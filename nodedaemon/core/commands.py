"""The commands that the engine issues. They compare by value and are safe to carry out twice.

A command about a grant or a lane's memory carries its epoch, so a late answer does no harm.
"""

from __future__ import annotations

from msgspec import Struct

from nodedaemon.core.types import DeviceId, Domain, Epoch, JobId, LaneId, SessionId, Shortfall


class _ToSession(Struct, frozen=True):
    session: SessionId


class AdmitSession(_ToSession, frozen=True):
    """The session's persistent bytes are available: the Prolog may return and the job may allocate."""

    persistent_bytes: int


class BindSession(_ToSession, frozen=True):
    """The session uses this lane from its next grant on."""

    lane: LaneId


class Grant(_ToSession, frozen=True):
    """The session may run iterations in the lane until a revoke, and at most `iteration_limit` of them if it is set."""

    lane: LaneId
    epoch: Epoch
    iteration_limit: int | None = None


class LimitGrant(_ToSession, frozen=True):
    """At most `iteration_count` more iterations may start under this grant."""

    epoch: Epoch
    iteration_count: int


class Revoke(_ToSession, frozen=True):
    """Return the grant at the next boundary. If a successor is named, start it directly.

    A later `Revoke` for the same epoch replaces the successor.
    """

    epoch: Epoch
    successor: SessionId | None = None
    successor_epoch: Epoch | None = None


class ReleaseSession(_ToSession, frozen=True):
    """Answer `SessionReleased` once the device reports the session's persistent memory as free."""


class EndSession(_ToSession, frozen=True):
    reason: str


class WarnSession(_ToSession, frozen=True):
    reason: str


class AllowOverrun(_ToSession, frozen=True):
    """The session may use these totals from now on."""

    persistent_bytes: int
    ephemeral_bytes: int


class RefuseOverrun(_ToSession, frozen=True):
    """The allocation that exceeds the admitted memory fails in the job that made it. No other job is affected."""

    shortfall: Shortfall


class ReportOverdue(_ToSession, frozen=True):
    """The session did not return its grant in time. `salus why` and the log show it."""

    job: JobId
    waited_ns: int


class _ToLane(Struct, frozen=True):
    lane: LaneId


class OpenLane(_ToLane, frozen=True):
    """Create fresh, zeroed lane memory. Answer `LaneOpened` or `LaneFailed`."""

    device: DeviceId
    domain: Domain
    bytes: int
    epoch: Epoch


class ReleaseLane(_ToLane, frozen=True):
    """Make every session save its data and unmap the lane. Answer `LaneReleased` once the bytes are free."""

    epoch: Epoch


class CloseLane(_ToLane, frozen=True):
    """The lane no longer exists. It holds no bytes and no session."""


class WakeAt(Struct, frozen=True):
    """Send `Ticked(device)` at that time. A later `WakeAt` for the same device replaces it."""

    device: DeviceId
    at_ns: int


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
