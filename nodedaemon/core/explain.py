"""Explains to `salus why` why a session does not run: every reason at once, and what would change it.

`reasons` reads the engine. `boundaries_until_served` makes a change on a fork of the engine and drives the fork, so its
answer comes from the code that decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from nodedaemon.core import events as ev
from nodedaemon.core.commands import AdmitSession, Grant
from nodedaemon.core.confirmations import confirmation
from nodedaemon.core.engine import Engine
from nodedaemon.core.errors import PeerError, RequestError
from nodedaemon.core.ordering import Breadth
from nodedaemon.core.state.lanes import Device, LaneState
from nodedaemon.core.state.sessions import Session, SessionState
from nodedaemon.core.types import JobClass, SessionId, Shortfall

#: Events that a what-if tries before it gives up: enough for a few hundred boundaries, few enough for a fast answer.
WHAT_IF_EVENTS_MAX = 2000


def reasons(engine: Engine, session_id: SessionId) -> tuple[Shortfall, ...]:
    """Every reason why the session does not run now; empty if it runs or wants nothing."""
    for device in engine.devices():
        session = device.sessions.get(session_id)
        if session is not None:
            return tuple(_of_device(device) + _of_session(device, session))
    return (Shortfall(f"session {session_id}", 1, 0, "sessions", "it is not on this node; see salus status"),)


def boundaries_until_served(
    engine: Engine, session_id: SessionId, changes: Sequence[ev.Event], now_ns: int
) -> int | None:
    """How many boundaries it takes, after `changes`, until the session is admitted or granted; None if it never is.

    The engine itself does not change. On its fork every holder reaches its boundary at once, every memory operation
    succeeds and no other session arrives, leaves or asks for more.
    """
    fork = engine.fork()
    pending = deque(changes)
    boundary_count = 0
    for step in range(WHAT_IF_EVENTS_MAX):
        if not pending:
            boundary = _next_boundary(fork, session_id)
            if boundary is None:
                return None
            pending.append(boundary)
            boundary_count += 1
        try:
            commands = fork.handle(pending.popleft(), now_ns + step)
        except (PeerError, RequestError):
            continue
        if any(isinstance(one, Grant | AdmitSession) and one.session == session_id for one in commands):
            return boundary_count
        pending.extend(event for one in commands if (event := confirmation(one)) is not None)
    return None


def _next_boundary(engine: Engine, session_id: SessionId) -> ev.Event | None:
    """The next grant to come back on the session's device: that of a revoked holder first."""
    device = next((one for one in engine.devices() if session_id in one.sessions), None)
    holders = [
        (session.state is not SessionState.REVOKED, session.id, session.epoch)
        for session in (device.sessions.values() if device is not None else ())
        if session.epoch is not None and not session.is_ungated and not session.is_stopped
    ]
    if not holders:
        return None
    _, holder, epoch = min(holders)
    return ev.GrantReturned(holder, epoch)


def _of_device(device: Device) -> list[Shortfall]:
    found = []
    if device.lost_reason is not None:
        found.append(
            Shortfall(f"device {device.id} is lost ({device.lost_reason})", 1, 0, "devices", "see salus doctor")
        )
    if device.is_drained:
        why = f" ({device.drain_reason})" if device.drain_reason else ""
        found.append(Shortfall(f"device {device.id} is drained{why}", 1, 0, "devices", "an admin can run salus resume"))
    return found


def _of_session(device: Device, session: Session) -> list[Shortfall]:
    if session.is_stopped:
        return [Shortfall(f"job {session.job} is stopped", 1, 0, "processes", "use scontrol resume or kill -CONT")]
    if session.state is SessionState.ARRIVING:
        return _of_arrival(device, session)
    if session.state is SessionState.WAITING:
        return _of_waiter(device, session)
    return []


def _of_arrival(device: Device, session: Session) -> list[Shortfall]:
    free_bytes = device.free_bytes
    found = []
    if session.persistent_bytes > free_bytes:
        advice = "lanes give bytes back at their next boundary"
        found.append(Shortfall(f"memory of device {device.id}", session.persistent_bytes, free_bytes, advice=advice))
    if not device.can_always_run(session.persistent_bytes, session.ephemeral_bytes):
        needed = session.persistent_bytes + max(device.ephemeral_bytes_max, session.ephemeral_bytes)
        spare = device.limits.capacity_bytes - device.persistent_bytes - device.pinned_bytes
        found.append(
            Shortfall(f"room for the largest iteration on device {device.id}", needed, spare, advice="a job must end")
        )
    older = sum(1 for one in device.arrivals.values() if one.arrival_order < session.arrival_order)
    if older:
        found.append(Shortfall("arrivals before it", older, 0, "sessions", "they are admitted in order"))
    return found


def _of_waiter(device: Device, session: Session) -> list[Shortfall]:
    lane = session.lane
    assert lane is not None
    found = []
    if device.ordering.breadth is Breadth.CLASS:
        higher = sum(
            device.running[job_class] + len(device.waits[job_class])
            for job_class in JobClass
            if job_class < session.job_class
        )
        if higher:
            found.append(Shortfall("sessions of a higher class", higher, 0, "sessions", "they go first under priority"))
    if lane.holder is not None:
        what = f"lane {lane.id} runs job {lane.holder.job}"
        found.append(Shortfall(what, 1, 0, "turns", "the policy decides at its next boundary"))
    if lane.state is LaneState.PARKED or lane.held_bytes < session.ephemeral_bytes:
        advice = "other lanes give bytes back at a boundary, after DomainQuantum"
        free_bytes = device.free_bytes + lane.held_bytes
        found.append(Shortfall(f"lane memory of device {device.id}", lane.target_bytes, free_bytes, advice=advice))
    if device.ordering.breadth is Breadth.ONE and any(device.running.values()) and lane.holder is None:
        what = f"turns of device {device.id}"
        found.append(Shortfall(what, 1, 0, "turns", f"{device.limits.policy} runs one session at a time"))
    if device.arrivals:
        found.append(Shortfall("arrivals that claim memory first", len(device.arrivals), 0, "sessions"))
    return found
