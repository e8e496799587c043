"""Takes lanes back from holders that cannot return them, when a session that Slurm placed needs the memory.

Theory of operation
-------------------
The memory rule promises that a placed session never waits for another job to end: every lane can be released at a
boundary, so the persistent bytes of all and the largest iteration always fit. A holder that reaches no boundary breaks
this: it is stopped, hung, or keeps its lane because its job has several processes (`Lane.is_stuck`). Other sessions
continue without that lane if they can. A placed session that cannot is *blocked*:

- an arrival or a waiter needs more bytes than remain outside the stuck lanes,
- a waiter needs a lane, and the stuck lanes use up `MaxLanes`,
- a waiter was named as the successor of the stuck holder, and may have been started by it.

After each event, this module finds the blocked sessions and the holders whose lanes would unblock them. A holder that
blocks for `HangTimeout` without interruption is ended, whatever `OnHang` says. Until then the time counts as its
service, so a job that stops itself repeatedly loses its own turns instead of taking those of others. A job that Slurm
suspended is not ended: it did not stop itself, and it needs its memory when it resumes.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodedaemon.core.commands import EndSession
from nodedaemon.core.round.claims import Round
from nodedaemon.core.state.lanes import Device, Lane, LaneState
from nodedaemon.core.state.sessions import Session


def reclaim_stuck_lanes(round_: Round) -> None:
    """Note which holders block a placed session, and end those that have done so for `HangTimeout`."""
    device, now_ns = round_.device, round_.now_ns
    if device.lost_reason is not None:
        return
    blocking = _blocking_lanes(device)
    for lane in device.open_lanes.values():
        holder = lane.holder
        if holder is None:
            continue
        if lane not in blocking:
            device.charge_blocking(holder, now_ns)
        elif holder.blocking_ns is None:
            holder.blocking_ns = now_ns
        elif now_ns - holder.blocking_ns >= device.limits.hang_timeout_ns:
            # Start to count again, so that a process that survives is ended again.
            holder.blocking_ns = now_ns
            reason = "it kept memory that a job placed by Slurm needs, and reached no boundary"
            round_.commands.append(EndSession(holder.id, reason))


def _blocking_lanes(device: Device) -> list[Lane]:
    """The stuck lanes that must be released so that no placed session is blocked, as few as possible."""
    # Those that block already come first, so that the choice does not change from event to event.
    stuck = sorted(
        (lane for lane in device.stuck_lanes() if lane.holder is not None and not lane.holder.is_suspended),
        key=lambda lane: (-(_holder(lane).blocking_ns is not None), -lane.held_bytes, lane.id),
    )
    if not stuck:
        return []
    lack_bytes = max((_lack_bytes(device, session) for session in _claimants(device)), default=0)
    lanes_left = device.limits.lanes_max - sum(1 for lane in device.stuck_lanes() if not lane.is_pinned)
    needs_lane = lanes_left <= 0 and any(_needs_lane(session) for session in _claimants(device))
    blocking: list[Lane] = []
    for lane in stuck:
        waiter = lane.first_waiter()
        is_succeeded = waiter is not None and waiter[1].is_placed
        if lack_bytes > 0 or (needs_lane and not lane.is_pinned) or is_succeeded:
            blocking.append(lane)
            lack_bytes -= lane.held_bytes
            needs_lane = needs_lane and lane.is_pinned
    return blocking


def _holder(lane: Lane) -> Session:
    assert lane.holder is not None
    return lane.holder


def _claimants(device: Device) -> Iterator[Session]:
    """Placed sessions that need bytes: arrivals, and waiters of other lanes."""
    for session in device.sessions.values():
        is_arrival = not session.is_admitted and not device.is_drained
        is_waiter = session.is_queued and session.lane is not None and not session.lane.is_stuck
        if session.is_placed and (is_arrival or is_waiter):
            yield session


def _needs_lane(session: Session) -> bool:
    return session.lane is not None and session.lane.state is LaneState.PARKED


def _lack_bytes(device: Device, session: Session) -> int:
    """The bytes that a claimant lacks even if every lane that can be released gave up its bytes."""
    if not session.is_admitted:
        return device.lack_bytes(session.persistent_bytes, session.ephemeral_bytes)
    return device.persistent_bytes + device.pinned_bytes + session.ephemeral_bytes - device.limits.capacity_bytes
