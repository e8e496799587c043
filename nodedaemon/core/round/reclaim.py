"""Takes memory back from sessions that keep more than they may, when a session that Slurm placed needs it.

Theory of operation
-------------------
The memory rule promises that a placed session never waits for another job to end: every lane can be released at a
boundary, so the persistent bytes of all and the largest iteration always fit. Two kinds of sessions break this:

- a holder that reaches no boundary: it is stopped, hung, or keeps its lane because its job has several processes
  (`Lane.is_stuck`),
- a session above its charge: an overrun was allowed while nobody needed the bytes (`Device.over_charge`).

Other sessions continue without these bytes if they can. A placed session that cannot is *blocked*:

- an arrival or a waiter needs more bytes than remain,
- a waiter needs a lane, and the stuck lanes use up `MaxLanes`,
- a waiter was named as the successor of the stuck holder, and may have been started by it.

After each event, this module finds the blocked sessions and those whose end would unblock them. A session above its
charge is warned at once. A session that blocks for `HangTimeout` without interruption is ended, whatever `OnHang` and
`OnOverrun` say. Until then the time counts as its service, so a job that stops itself repeatedly loses its own turns
instead of taking those of others. A job that Slurm suspended is not ended: it did not stop itself, and it needs its
memory when it resumes. A session above its charge has a claim on stuck lanes, because others may wait behind it, but
none on the excess of others.
"""

from __future__ import annotations

from collections.abc import Collection

from nodedaemon.core.commands import EndSession, WarnSession
from nodedaemon.core.round.claims import Round
from nodedaemon.core.state.lanes import Device, Lane, LaneState
from nodedaemon.core.state.sessions import Session

EXCESS_REASON = "it uses more memory than its job was charged for, and a job placed by Slurm needs it"
STUCK_REASON = "it kept memory that a job placed by Slurm needs, and reached no boundary"


def reclaim_memory(round_: Round) -> None:
    """Note which sessions block a placed session, and end those that have done so for `HangTimeout`."""
    device, now_ns = round_.device, round_.now_ns
    if device.lost_reason is not None:
        return
    blocking = _blocking_sessions(device)
    for session in blockers(device):
        is_excess = session.id in device.over_charge
        if session not in blocking:
            device.charge_blocking(session, now_ns)
        elif session.blocking_ns is None:
            session.blocking_ns = now_ns
            if is_excess:
                round_.commands.append(WarnSession(session.id, EXCESS_REASON))
        elif now_ns - session.blocking_ns >= device.limits.hang_timeout_ns:
            # Start to count again, so that a process that survives is ended again.
            session.blocking_ns = now_ns
            round_.commands.append(EndSession(session.id, EXCESS_REASON if is_excess else STUCK_REASON))


def blockers(device: Device) -> list[Session]:
    """The sessions that could block others: holders, and sessions above their charge. Always in the same order."""
    holders = {lane.holder.id: lane.holder for lane in device.open_lanes.values() if lane.holder is not None}
    return sorted((holders | device.over_charge).values(), key=lambda one: one.id)


def _blocking_sessions(device: Device) -> list[Session]:
    """The sessions that must end so that no placed session is blocked, as few as possible."""
    # Those that block already come first, so that the choice does not change from event to event.
    greedy = sorted(
        (one for one in device.over_charge.values() if one.is_admitted and not one.is_suspended),
        key=lambda one: (one.blocking_ns is None, -_excess_bytes(device, one), one.id),
    )
    stuck = sorted(
        (lane for lane in device.stuck_lanes() if lane.holder is not None and not lane.holder.is_suspended),
        key=lambda lane: (_holder(lane).blocking_ns is None, -lane.held_bytes, lane.id),
    )
    if not greedy and not stuck:
        return []
    claimants = list(device.claimants())
    payers = [one for one in claimants if one.id not in device.over_charge]
    blocking: list[Session] = []
    for session in greedy:
        if _lack_bytes(device, payers, blocking) > 0:
            blocking.append(session)
    _add_stuck(device, claimants, stuck, blocking)
    holders = [lane.holder for lane in stuck]
    for session in greedy:
        others = [one for one in blocking if one is not session]
        if session not in holders and _lack_bytes(device, payers, others) <= 0:
            blocking = others
    return blocking


def _add_stuck(device: Device, claimants: list[Session], stuck: list[Lane], blocking: list[Session]) -> None:
    lanes_left = device.limits.lanes_max - sum(1 for lane in device.stuck_lanes() if not lane.is_pinned)
    needs_lane = lanes_left <= 0 and any(_needs_lane(session) for session in claimants)
    for lane in stuck:
        waiter = lane.first_waiter()
        is_succeeded = waiter is not None and waiter[1].is_placed
        is_lacking = _lack_bytes(device, claimants, blocking) > 0
        if is_lacking or (needs_lane and not lane.is_pinned) or is_succeeded:
            if lane.holder not in blocking:
                blocking.append(_holder(lane))
            needs_lane = needs_lane and lane.is_pinned


def _holder(lane: Lane) -> Session:
    assert lane.holder is not None
    return lane.holder


def _excess_bytes(device: Device, session: Session) -> int:
    return device.excess_bytes(session, session.persistent_bytes, session.ephemeral_bytes)


def _needs_lane(session: Session) -> bool:
    return session.lane is not None and session.lane.state is LaneState.PARKED


def _lack_bytes(device: Device, claimants: list[Session], without: Collection[Session]) -> int:
    """The most bytes that a claimant lacks even if every lane that can be released gave up its bytes.

    The sessions in `without` count as gone.
    """
    stuck_bytes = sum(lane.held_bytes for lane in device.stuck_lanes() if lane.holder not in without)
    gone_bytes = sum(one.persistent_bytes for one in without)
    used_bytes = device.persistent_bytes - gone_bytes + stuck_bytes
    return max(
        (
            used_bytes + one.ephemeral_bytes - device.limits.capacity_bytes
            if one.is_admitted
            else device.lack_bytes(one.persistent_bytes, one.ephemeral_bytes, without)
            for one in claimants
        ),
        default=0,
    )
