"""The times at which the engine must act without an event: leases, quanta, retries and hung holders."""

from __future__ import annotations

import math

from nodedaemon.core.commands import ReportOverdue, WakeAt
from nodedaemon.core.round.claims import Round
from nodedaemon.core.round.reclaim import blockers
from nodedaemon.core.state.lanes import Lane
from nodedaemon.core.state.sessions import Session, SessionState


def report_hung(round_: Round) -> None:
    """Report holders that reached no boundary in time after a revoke. Other sessions move to other lanes."""
    if round_.device.lost_reason is not None:
        return
    for lane in list(round_.device.open_lanes.values()):
        holder = lane.holder
        if holder is None or holder.state is not SessionState.REVOKED or lane.is_stuck:
            continue
        if round_.now_ns >= _hang_deadline_ns(round_, holder):
            holder.is_reported = True
            # Otherwise a policy that runs one session at a time would wait for it forever.
            round_.device.stop_service(holder)
            waited_ns = round_.now_ns - holder.revoked_ns
            reason = f"no boundary for {waited_ns} ns after a revoke while others wait"
            round_.commands.append(ReportOverdue(holder.id, holder.job, waited_ns))
            round_.warn_or_end(holder, round_.device.limits.on_hang, reason)
            round_.placement.clear(lane, holder)


def set_wake(round_: Round) -> None:
    """Ask for a tick at the next time at which the order can change without an event."""
    device, now_ns = round_.device, round_.now_ns
    if device.wake_ns is not None and device.wake_ns <= now_ns:
        device.wake_ns = None
    if device.lost_reason is not None:
        return
    moments: list[float] = list(round_.retry_ns)
    parked = device.first_parked()
    since_ns = (session.blocking_ns for session in blockers(device))
    moments += [start_ns + device.limits.hang_timeout_ns for start_ns in since_ns if start_ns is not None]
    for lane in device.open_lanes.values():
        holder = lane.holder
        if holder is None or lane.is_stuck:
            continue
        if holder.state is SessionState.REVOKED:
            moments.append(_hang_deadline_ns(round_, holder))
            continue
        moments.append(round_.check_in_ns(holder))
        rivals = {one.id: one for one in (round_.rival(lane), None if parked is None else _first(parked[1])) if one}
        if device.ordering.is_timed:
            rivals.update((one.id, one) for one in round_.rivals_elsewhere(lane))
        for rival in rivals.values():
            moments.extend(_lease_end(round_, lane, holder, rival))
    at_ns = min((int(moment) for moment in moments if now_ns < moment < math.inf), default=None)
    if at_ns is not None and (device.wake_ns is None or at_ns < device.wake_ns):
        device.wake_ns = at_ns
        round_.commands.append(WakeAt(device.id, at_ns))


def _first(lane: Lane) -> Session:
    first = lane.first_waiter()
    assert first is not None
    return first[1]


def _lease_end(round_: Round, lane: Lane, holder: Session, rival: Session) -> list[int]:
    wall_ns = round_.precedence.lease_wall_ns(holder, rival)
    if wall_ns is None or round_.precedence.is_spent(wall_ns):
        return []  # never, or this round has decided already
    end_ns = round_.now_ns + wall_ns
    if rival.lane is not lane and not rival.is_served:
        end_ns = max(end_ns, round_.precedence.protected_until_ns(lane, rival))
    return [end_ns]


def _hang_deadline_ns(round_: Round, holder: Session) -> int:
    return holder.revoked_ns + round_.device.limits.hang_timeout_ns
