"""What an event about a session changes, before the round that follows it.

Here a session waits, returns its grant, stops, grows and leaves. The round does the rest: it admits and grants. The
tables in `state.sessions` and `state.lanes` list all transitions; any other transition is an error.
"""

from __future__ import annotations

from typing import assert_never

from nodedaemon.core import events as ev
from nodedaemon.core.commands import AllowOverrun, Grant, RefuseOverrun, ReleaseSession
from nodedaemon.core.errors import PeerError
from nodedaemon.core.memory import round_up
from nodedaemon.core.round.claims import Round
from nodedaemon.core.state.lanes import Device, Lane
from nodedaemon.core.state.sessions import Session, SessionState
from nodedaemon.core.types import Shortfall


def apply(event: ev.SessionEvent, session: Session, round_: Round) -> None:
    """Change the session and its device. A late answer changes nothing; an impossible one raises `PeerError`."""
    match event:
        case ev.GrantWanted():
            _want(session, round_)
        case ev.GrantReturned():
            _return(event, session, round_)
        case ev.SessionStopped():
            _stop(event, session, round_)
        case ev.SessionContinued():
            _continue(session, round_)
        case ev.SessionOverran():
            _overrun(event, session, round_)
        case ev.SessionUngated():
            _ungate(event, session, round_)
        case ev.SessionLeft():
            _leave(event, session, round_)
        case ev.SessionReleased():
            _forget(session, round_.device)
        case _:
            assert_never(event)


def _want(session: Session, round_: Round) -> None:
    # A late or repeated request: the session waits or runs already, or needs no grant.
    if session.state is not SessionState.IDLE:
        return
    device = round_.device
    session.step(SessionState.WAITING, round_.now_ns)
    device.note_running_service()
    session.virtual = device.book.join(session.id, session.virtual)
    device.enqueue(session, round_.now_ns)


def _return(event: ev.GrantReturned, session: Session, round_: Round) -> None:
    if not session.is_holding or session.epoch != event.epoch:
        return
    device, now_ns = round_.device, round_.now_ns
    lane = session.lane
    assert lane is not None
    if lane.is_pinned:
        return
    successor = None
    if event.handed_over is not None:
        if event.handed_over not in session.offers:
            raise PeerError(
                f"hand-over refused: session {session.id}: epoch {event.handed_over} was offered to no session"
            )
        # If the successor has left meanwhile, the lane is free.
        successor = lane.sessions.get(session.offers[event.handed_over])
    _end_grant(session, lane, round_)
    session.iteration_count += max(0, event.iteration_count)
    device.waits_of(session).overtake_all(max(0, event.contended_count))
    if successor is not None:
        session.handover_count += 1
        round_.grant(lane, successor, event.handed_over)
    if event.wants_next:
        session.step(SessionState.WAITING, now_ns)
        device.enqueue(session, now_ns)
    else:
        session.step(SessionState.IDLE, now_ns)
        device.book.leave(session.id)
    if successor is not None and successor.is_stopped:
        round_.placement.clear(lane, successor)


def _end_grant(session: Session, lane: Lane, round_: Round) -> None:
    round_.device.stop_service(session)
    # The end of a grant gives back a lane, but no excess.
    if session.id not in round_.device.over_charge:
        round_.device.charge_blocking(session, round_.now_ns)
    lane.holder, lane.returned_ns, lane.is_pinned = None, round_.now_ns, False
    session.epoch, session.iteration_limit, session.successor = None, None, None
    session.offers.clear()


def _stop(event: ev.SessionStopped, session: Session, round_: Round) -> None:
    session.is_suspended = event.is_suspended
    if session.is_stopped:
        return
    session.is_stopped = True
    if session.state is SessionState.WAITING:
        round_.device.waits_of(session).remove(session.id, is_granted=False)
        holder = None if session.lane is None else session.lane.holder
        if holder is not None and holder.successor == session.id:
            round_.revoke(holder, None)
    elif session.is_holding:
        round_.device.stop_service(session)
        assert session.lane is not None
        round_.placement.clear(session.lane, session)


def _continue(session: Session, round_: Round) -> None:
    if not session.is_stopped:
        return
    session.is_stopped = session.is_suspended = False
    if session.id not in round_.device.over_charge:
        round_.device.charge_blocking(session, round_.now_ns)
    if session.state is SessionState.WAITING:
        round_.device.enqueue(session, round_.now_ns)
    elif session.is_holding and not session.is_ungated:
        round_.device.start_service(session)
        session.revoked_ns = round_.now_ns


def _overrun(event: ev.SessionOverran, session: Session, round_: Round) -> None:
    device = round_.device
    if session.state in (SessionState.ARRIVING, SessionState.LEAVING):
        return
    persistent_bytes = max(session.persistent_bytes, round_up(event.persistent_bytes))
    ephemeral_bytes = max(session.ephemeral_bytes, round_up(event.ephemeral_bytes))
    if session.state is SessionState.UNGATED:
        persistent_bytes, ephemeral_bytes = persistent_bytes + ephemeral_bytes, 0
    more_bytes = persistent_bytes - session.persistent_bytes
    excess_bytes = device.excess_bytes(session, persistent_bytes, ephemeral_bytes)
    is_growing = excess_bytes > device.excess_bytes(session, session.persistent_bytes, session.ephemeral_bytes)
    is_unpaid = excess_bytes > 0 and is_growing and device.is_awaited(session)
    if not is_unpaid and more_bytes <= device.free_bytes and device.can_always_run(more_bytes, ephemeral_bytes):
        device.persistent_bytes += more_bytes
        session.persistent_bytes, session.ephemeral_bytes = persistent_bytes, ephemeral_bytes
        device.note_size(session)
        device.note_charge(session)
        if session.lane is not None:
            session.lane.note_size(session)
        round_.commands.append(AllowOverrun(session.id, persistent_bytes, ephemeral_bytes))
        return
    if is_unpaid:
        what = f"memory of device {device.id} beyond the charge of job {session.job}"
        shortfall = Shortfall(what, excess_bytes, 0, advice="another job waits for memory that it was charged for")
    else:
        shortfall = _overrun_shortfall(device, session, persistent_bytes, ephemeral_bytes)
    round_.commands.append(RefuseOverrun(session.id, shortfall))
    round_.warn_or_end(session, device.limits.on_overrun, shortfall.text())


def _overrun_shortfall(device: Device, session: Session, persistent_bytes: int, ephemeral_bytes: int) -> Shortfall:
    advice = "use a smaller batch, or run once alone so that the profile is measured again"
    free_bytes = device.free_bytes + session.persistent_bytes
    if persistent_bytes > free_bytes:
        return Shortfall(f"memory of device {device.id}", persistent_bytes, free_bytes, advice=advice)
    needed_bytes = persistent_bytes + max(device.ephemeral_bytes_max, ephemeral_bytes)
    others_bytes = device.persistent_bytes - session.persistent_bytes + device.pinned_bytes
    what = f"room for the largest iteration on device {device.id}"
    return Shortfall(what, needed_bytes, device.limits.capacity_bytes - others_bytes, advice=advice)


def _ungate(event: ev.SessionUngated, session: Session, round_: Round) -> None:
    device = round_.device
    if session.is_ungated or session.state in (SessionState.UNGATED, SessionState.LEAVING):
        return
    if event.has_own_memory and session.state in (SessionState.ARRIVING, SessionState.IDLE):
        _ungate_for_good(session, round_)
        return
    if not device.can_pin(session):
        return
    session.is_ungated = True
    # A named successor may already be running: then the grant is returned first, and this session is served next.
    if session.is_holding and not session.offers:
        lane = session.lane
        assert lane is not None
        round_.pin(lane, session)
        if session.state is SessionState.REVOKED:
            session.step(SessionState.RUNNING, round_.now_ns)
        session.epoch = device.next_epoch()
        round_.commands.append(Grant(session.id, lane.id, session.epoch))
    elif session.is_queued:
        device.waits_of(session).remove(session.id, is_granted=False)
        device.enqueue(session, round_.now_ns)


def _ungate_for_good(session: Session, round_: Round) -> None:
    """Turn the ephemeral bytes that the job was charged for into persistent ones, if they fit. The rest is dropped."""
    device, lane = round_.device, session.lane
    is_arriving = session.state is SessionState.ARRIVING
    more_bytes = max(0, session.ephemeral_bytes - device.limits.lane_reserve_bytes)
    session.ephemeral_bytes = 0
    needed_bytes = more_bytes + (session.persistent_bytes if is_arriving else 0)
    if device.can_always_run(needed_bytes) and (is_arriving or more_bytes <= device.free_bytes):
        session.persistent_bytes += more_bytes
        device.persistent_bytes += 0 if is_arriving else more_bytes
    device.note_charge(session)
    if lane is not None:
        lane.leave(session)
        session.step(SessionState.UNGATED, round_.now_ns)
        round_.empty(lane)


def _leave(event: ev.SessionLeft, session: Session, round_: Round) -> None:
    device = round_.device
    if session.state is SessionState.LEAVING:
        return
    if session.state is SessionState.ARRIVING:
        del device.arrivals[session.id]
        _drop(session, device)
        return
    lane = session.lane
    if session.is_queued:
        device.waits_of(session).remove(session.id, is_granted=False)
    elif session.is_holding:
        assert lane is not None
        _end_grant(session, lane, round_)
    session.iteration_count += max(0, event.iteration_count)
    device.book.leave(session.id)
    session.step(SessionState.LEAVING, round_.now_ns)
    if lane is not None:
        lane.leave(session)
        round_.empty(lane)
    round_.commands.append(ReleaseSession(session.id))


def _forget(session: Session, device: Device) -> None:
    if session.state is not SessionState.LEAVING:
        raise PeerError(f"release refused: session {session.id} of job {session.job}: it is still {session.state}")
    device.persistent_bytes -= session.persistent_bytes
    _drop(session, device)


def _drop(session: Session, device: Device) -> None:
    """Remove the session. Its charge passes to the next session of its job."""
    del device.sessions[session.id]
    device.over_charge.pop(session.id, None)
    heir = next((one for one in device.sessions.values() if one.job == session.job), None)
    if heir is not None:
        heir.charged_persistent_bytes += session.charged_persistent_bytes
        heir.charged_ephemeral_bytes += session.charged_ephemeral_bytes
        device.note_charge(heir)
