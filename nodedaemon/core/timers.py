"""The times at which the engine must act without an event: leases, quanta, retries and hung holders."""

from __future__ import annotations

from nodedaemon.core.claims import Round
from nodedaemon.core.commands import Command, EndSession, ReportOverdue, WakeAt, WarnSession
from nodedaemon.core.lanes import Lane
from nodedaemon.core.sessions import Session, SessionState
from nodedaemon.core.types import OnHang


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
            # Otherwise a policy that runs one session at a time would wait for it for ever.
            round_.device.stop_service(holder)
            round_.commands.extend(_report(round_, holder))
            round_.placement.clear(lane, holder)


def set_wake(round_: Round) -> None:
    """Ask for a tick at the next time at which the order can change without an event."""
    device, now_ns = round_.device, round_.now_ns
    if device.wake_ns is not None and device.wake_ns <= now_ns:
        device.wake_ns = None
    if device.lost_reason is not None:
        return
    moments = list(round_.retry_ns)
    parked = device.first_parked()
    for lane in device.open_lanes.values():
        holder = lane.holder
        if holder is None or lane.is_stuck:
            continue
        if holder.state is SessionState.REVOKED:
            moments.append(_hang_deadline_ns(round_, holder))
            continue
        rivals = {one.id: one for one in (round_.rival(lane), None if parked is None else _first(parked[1])) if one}
        if device.ordering.is_timed:
            rivals.update((one.id, one) for one in round_.rivals_elsewhere(lane))
        for rival in rivals.values():
            moments.extend(_lease_end(round_, lane, holder, rival))
    at_ns = min((moment for moment in moments if moment > now_ns), default=None)
    if at_ns is not None and (device.wake_ns is None or at_ns < device.wake_ns):
        device.wake_ns = at_ns
        round_.commands.append(WakeAt(device.id, at_ns))


def _first(lane: Lane) -> Session:
    first = lane.first_waiter()
    assert first is not None
    return first[1]


def _lease_end(round_: Round, lane: Lane, holder: Session, rival: Session) -> list[int]:
    wall_ns = round_.lease_wall_ns(holder, rival)
    if wall_ns is None or round_.is_spent(wall_ns):
        return []  # never, or this round has decided already
    end_ns = round_.now_ns + wall_ns
    if rival.lane is not lane and not rival.is_served:
        end_ns = max(end_ns, round_.protected_until_ns(lane, rival))
    return [end_ns]


def _hang_deadline_ns(round_: Round, holder: Session) -> int:
    return holder.revoked_ns + round_.device.limits.hang_timeout_ns


def _report(round_: Round, holder: Session) -> list[Command]:
    waited_ns = round_.now_ns - holder.revoked_ns
    reason = f"no boundary for {waited_ns} ns after a revoke while others wait"
    is_ended = round_.device.limits.on_hang is OnHang.KILL
    command = EndSession(holder.id, reason) if is_ended else WarnSession(holder.id, reason)
    return [ReportOverdue(holder.id, holder.job, waited_ns), command]
