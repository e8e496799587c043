"""The engine: events and the time go in, commands come out.

Theory of operation
-------------------
`Engine.handle` is the only function that changes state. It reads no clock and does no I/O, so the daemon, the
simulator, a replay and a test get the same commands for the same events. One call is one round on one device:

1. The service clock of the device advances to the time of the event.
2. The event is applied. Only this file changes the state of sessions because of an event. The tables in `sessions` and
   `lanes` list all transitions; any other transition is an error.
3. `timers.report_hung` reports holders that ignored a revoke for too long.
4. `claims.Round` serves arrivals, then waiters, then holders. It opens and releases lanes, grants and revokes.
5. `timers.set_wake` asks for a tick at the next moment at which the order can change without an event.

Why memory is safe: persistent bytes are counted from admission until `SessionReleased`, and lane bytes from `OpenLane`
until `LaneReleased`. Both are counted before the command is issued and uncounted only after the release is confirmed.
A round admits or opens only what fits `Device.free_bytes`, after the policy has chosen the order. So the sum of all
bytes never exceeds the capacity, whatever a policy or a late answer does. `invariants` checks this after every event in
tests.

Why every session makes progress: admission keeps `sum P + largest E <= C` (`Device.can_always_run`), so each session
fits if all other lanes give up their bytes. The first claim that lacks bytes revokes the lanes that it needs, and
nobody behind it starts meanwhile. A waiter that was overtaken `MaxOvertakes` times goes first. A holder ends its grant
at a boundary, and one that reaches no boundary is reported and no longer delays others.

Why late answers do no harm: every grant and every lane opening has an epoch of its device that only grows. An answer
with an old epoch, or for a session or lane that is gone, changes nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import assert_never

from nodedaemon.core import events as ev
from nodedaemon.core.claims import Round
from nodedaemon.core.commands import (
    AllowOverrun,
    CloseLane,
    Command,
    EndSession,
    Grant,
    RefuseOverrun,
    ReleaseLane,
    ReleaseSession,
    WarnSession,
)
from nodedaemon.core.errors import PeerError, RequestError
from nodedaemon.core.fairness import REBASE_DOUBLINGS
from nodedaemon.core.lanes import Device, Lane, LaneState
from nodedaemon.core.memory import round_up
from nodedaemon.core.ordering import Breadth, Ordering, Policy
from nodedaemon.core.policies import make_policy
from nodedaemon.core.sessions import Place, Session, SessionState
from nodedaemon.core.snapshots import EngineSnapshot, describe
from nodedaemon.core.timers import report_hung, set_wake
from nodedaemon.core.types import DeviceId, DeviceLimits, LaneId, OnOverrun, SessionId, Shortfall
from nodedaemon.core.views import LaneView, SessionView

#: How long to wait before a lane is opened again after its memory could not be allocated.
LANE_RETRY_NS = 1_000_000_000


class Engine:
    """The state of all devices of a node."""

    def __init__(self, policy: Callable[[DeviceLimits], Policy] = make_policy) -> None:
        self._make_policy = policy
        self._devices: dict[DeviceId, Device] = {}
        self._device_of: dict[SessionId, Device] = {}
        self._lane_device: dict[LaneId, Device] = {}
        self._lane_count = 0
        self._arrival_count = 0

    def handle(self, event: ev.Event, now_ns: int) -> list[Command]:
        """Handle one event and return the commands to carry out, in order.

        A late answer changes nothing. An impossible event raises `PeerError` or `RequestError` before any change.
        """
        commands: list[Command] = []
        if isinstance(event, ev.DeviceAdded):
            self._add_device(event, now_ns)
            return commands
        device = self._find_device(event)
        if device is None:
            return commands
        self._advance(device, now_ns)
        round_ = Round(device, now_ns, commands, lambda: self._new_lane(device))
        self._apply(event, device, round_)
        report_hung(round_)
        round_.serve()
        for command in commands:
            if isinstance(command, CloseLane):
                del self._lane_device[command.lane]
        set_wake(round_)
        return commands

    def fork(self) -> Engine:
        """An independent copy, for what-if questions."""
        return copy.deepcopy(self)

    def snapshot(self) -> EngineSnapshot:
        """The whole state as a value, for `salus status` and for comparing replays."""
        return describe(self._devices.values())

    def session(self, session: SessionId) -> SessionView | None:
        """The session as it is now, to read; None if it never arrived or has gone."""
        device = self._device_of.get(session)
        return None if device is None else device.sessions[session]

    def lane(self, lane: LaneId) -> LaneView | None:
        """The lane as it is now, to read; None if there is no such lane any more."""
        device = self._lane_device.get(lane)
        return None if device is None else device.lanes[lane]

    def devices(self) -> tuple[Device, ...]:
        """The live state, read-only, for invariants and explanations."""
        return tuple(self._devices.values())

    @property
    def counts(self) -> tuple[int, int]:
        """The number of lanes and arrivals so far, from which ids continue."""
        return self._lane_count, self._arrival_count

    def restore(self, devices: Iterable[Device], lane_count: int, arrival_count: int) -> None:
        """Adopt the state of another engine; for `core.frozen`, on an unused engine."""
        assert not self._devices
        for device in devices:
            self._devices[device.id] = device
            self._device_of.update(dict.fromkeys(device.sessions, device))
            self._lane_device.update(dict.fromkeys(device.lanes, device))
        self._lane_count, self._arrival_count = lane_count, arrival_count

    # Finding

    def _find_device(self, event: ev.Event) -> Device | None:
        if isinstance(event, ev.DeviceEvent | ev.SessionArrived):
            device = self._devices.get(event.device)
            if device is None:
                raise RequestError(f"device unknown: {event.device}: not on this node; see salus status")
            if isinstance(event, ev.SessionArrived) and event.session in self._device_of:
                raise PeerError(f"session refused: {event.session}: that id is in use; ids are never reused")
            return device
        if isinstance(event, ev.LaneEvent):
            return self._lane_device.get(event.lane)
        device = self._device_of.get(event.session)
        if device is None and isinstance(event, ev.GrantWanted):
            raise PeerError(f"session unknown: {event.session}: gone or never arrived; end its connection")
        return device

    def _add_device(self, event: ev.DeviceAdded, now_ns: int) -> None:
        if event.device in self._devices:
            raise RequestError(f"device refused: {event.device}: it is there already; add each device once")
        ordering = Ordering(self._make_policy(event.limits))
        self._devices[event.device] = Device(event.device, event.limits, ordering, now_ns)

    def _new_lane(self, device: Device) -> LaneId:
        self._lane_count += 1
        lane = LaneId(self._lane_count)
        self._lane_device[lane] = device
        return lane

    def _advance(self, device: Device, now_ns: int) -> None:
        clock = device.clock
        clock.advance(now_ns)
        if clock.doublings() >= REBASE_DOUBLINGS:
            clock.rebase()
            device.rescale(REBASE_DOUBLINGS)
            self._rekey(device, now_ns)

    # Applying

    def _apply(self, event: ev.Event, device: Device, round_: Round) -> None:
        if isinstance(event, ev.DeviceEvent):
            self._apply_device(event, device, round_)
        elif isinstance(event, ev.LaneEvent):
            self._apply_lane(event, device, round_)
        else:
            self._apply_session(event, device, round_)

    def _apply_device(self, event: ev.DeviceEvent, device: Device, round_: Round) -> None:
        match event:
            case ev.DeviceDrained():
                device.is_drained = True
            case ev.DeviceResumed():
                device.is_drained = False
            case ev.DeviceLost():
                device.lost_reason = event.reason
            case ev.DeviceRecovered():
                device.lost_reason = None
            case ev.LimitsChanged():
                self._change_limits(device, event.limits, round_.now_ns)
            case ev.Ticked() | ev.DeviceAdded():
                pass  # a tick only triggers the round that follows; `handle` has added the device
            case _:
                assert_never(event)

    def _change_limits(self, device: Device, limits: DeviceLimits, now_ns: int) -> None:
        used_bytes = device.persistent_bytes + device.held_bytes
        if limits.capacity_bytes < used_bytes:
            raise RequestError(
                f"limits refused: device {device.id}: {used_bytes} bytes are in use and {limits.capacity_bytes} would "
                "be left; drain the device first"
            )
        if limits.lane_reserve_bytes < device.limits.lane_reserve_bytes and device.sessions:
            raise RequestError(
                f"limits refused: device {device.id}: the lane reserve may be lowered only on a drained device, "
                "because running jobs were charged by the old one; drain the device first"
            )
        ordering = Ordering(self._make_policy(limits))
        if limits.service_half_life_ns != device.limits.service_half_life_ns:
            doublings = device.clock.doublings()
            device.clock.grown >>= doublings
            device.clock.start_ns = now_ns
            device.clock.half_life_ns = limits.service_half_life_ns
            device.rescale(doublings)
        device.limits, device.ordering = limits, ordering
        self._rekey(device, now_ns)

    def _rekey(self, device: Device, now_ns: int) -> None:
        """Compute the position of every waiter again."""
        waiting = [one for one in device.sessions.values() if one.state is SessionState.WAITING and not one.is_stopped]
        for lane in device.lanes.values():
            lane.waiters.clear()
        device.forget_waiters()
        for session in sorted(waiting, key=lambda one: one.wait_order):
            device.waits_of(session).append(session.id)
            session.place = self._place(session, device, now_ns)
            assert session.lane is not None
            session.lane.add_waiter(session.place, session)
        for lane in device.lanes.values():
            if lane.state is LaneState.PARKED:
                device.note_parked(lane)

    def _apply_lane(self, event: ev.LaneEvent, device: Device, round_: Round) -> None:
        lane = device.lanes[event.lane]
        awaited = LaneState.RELEASING if isinstance(event, ev.LaneReleased) else LaneState.OPENING
        if event.epoch != lane.epoch or lane.state is not awaited:
            return
        match event:
            case ev.LaneOpened():
                lane.step(LaneState.OPEN)
                lane.opened_ns = lane.returned_ns = round_.now_ns
            case ev.LaneFailed():
                lane.retry_ns = round_.now_ns + LANE_RETRY_NS
                self._lose_bytes(lane, device, round_)
            case ev.LaneReleased():
                self._lose_bytes(lane, device, round_)
            case _:
                assert_never(event)

    def _lose_bytes(self, lane: Lane, device: Device, round_: Round) -> None:
        device.end_release(lane)
        if not lane.sessions:
            device.drop_lane(lane)
            round_.commands.append(CloseLane(lane.id))

    def _apply_session(self, event: ev.SessionEvent, device: Device, round_: Round) -> None:
        if isinstance(event, ev.SessionArrived):
            self._arrive(event, device, round_.now_ns)
            return
        session = device.sessions[event.session]
        match event:
            case ev.GrantWanted():
                self._want(session, device, round_.now_ns)
            case ev.GrantReturned():
                self._return(event, session, device, round_)
            case ev.SessionStopped():
                self._stop(session, device, round_)
            case ev.SessionContinued():
                self._continue(session, device, round_.now_ns)
            case ev.SessionOverran():
                self._overrun(event, session, device, round_)
            case ev.SessionUngated():
                self._ungate(session, device, round_)
            case ev.SessionLeft():
                self._leave(event, session, device, round_)
            case ev.SessionReleased():
                self._forget(session, device)
            case _:
                assert_never(event)

    def _arrive(self, event: ev.SessionArrived, device: Device, now_ns: int) -> None:
        if min(event.persistent_bytes, event.ephemeral_bytes) < 0 or event.weight < 1:
            raise PeerError(f"session refused: {event.session}: sizes and weight must not be negative or zero")
        self._arrival_count += 1
        session = Session(
            id=event.session,
            job=event.job,
            domain=event.domain,
            persistent_bytes=round_up(event.persistent_bytes),
            ephemeral_bytes=round_up(event.ephemeral_bytes),
            job_class=event.job_class,
            weight=event.weight,
            remaining_ns=event.remaining_ns,
            arrival_order=self._arrival_count,
            arrived_ns=now_ns,
        )
        device.sessions[session.id] = session
        device.arrivals[session.id] = session
        self._device_of[session.id] = device

    def _want(self, session: Session, device: Device, now_ns: int) -> None:
        session.step(SessionState.WAITING, now_ns)
        device.note_running_service()
        session.virtual = device.book.join(session.id, session.virtual)
        self._line_up(session, device, now_ns)

    def _line_up(self, session: Session, device: Device, now_ns: int) -> None:
        device.wait_order += 1
        session.wanted_ns, session.wait_order = now_ns, device.wait_order
        session.place = self._place(session, device, now_ns)
        if session.is_stopped:
            return
        lane = session.lane
        assert lane is not None
        lane.add_waiter(session.place, session)
        device.waits_of(session).append(session.id)
        if lane.state is LaneState.PARKED:
            device.note_parked(lane)

    @staticmethod
    def _place(session: Session, device: Device, now_ns: int) -> Place:
        # Ungated sessions go first. The class precedes the policy's key here, so that no policy can ignore it.
        urgency = 0 if session.is_ungated else 2
        job_class = int(session.job_class) if device.ordering.breadth is Breadth.CLASS else 0
        return (urgency, job_class, device.ordering.key(session.view(), now_ns), session.wait_order)

    def _return(self, event: ev.GrantReturned, session: Session, device: Device, round_: Round) -> None:
        if not session.is_holding or session.epoch != event.epoch:
            return
        lane = session.lane
        assert lane is not None
        if lane.is_pinned:
            return
        successor = None
        if event.handed_over is not None:
            if event.handed_over not in session.offers:
                raise PeerError(
                    f"hand-over refused: session {session.id}: epoch {event.handed_over} was offered to nobody"
                )
            # If the successor has left meanwhile, the lane is free.
            successor = lane.sessions.get(session.offers[event.handed_over])
        self._end_grant(session, lane, device, round_.now_ns)
        session.iteration_count += max(0, event.iteration_count)
        device.waits_of(session).overtake_all(max(0, event.contended_count))
        if successor is not None:
            session.handover_count += 1
            round_.grant(lane, successor, event.handed_over)
        if event.wants_next:
            session.step(SessionState.WAITING, round_.now_ns)
            self._line_up(session, device, round_.now_ns)
        else:
            session.step(SessionState.IDLE, round_.now_ns)
            device.book.leave(session.id)
        if successor is not None and successor.is_stopped:
            round_.placement.clear(lane, successor)

    def _end_grant(self, session: Session, lane: Lane, device: Device, now_ns: int) -> None:
        device.stop_service(session)
        lane.holder, lane.returned_ns = None, now_ns
        lane.is_pinned = False
        session.epoch, session.iteration_limit, session.successor = None, None, None
        session.offers.clear()

    def _stop(self, session: Session, device: Device, round_: Round) -> None:
        if session.is_stopped:
            return
        session.is_stopped = True
        if session.state is SessionState.WAITING:
            device.waits_of(session).remove(session.id, is_granted=False)
            holder = None if session.lane is None else session.lane.holder
            if holder is not None and holder.successor == session.id:
                round_.revoke(holder, None)
        elif session.is_holding:
            device.stop_service(session)
            assert session.lane is not None
            round_.placement.clear(session.lane, session)

    def _continue(self, session: Session, device: Device, now_ns: int) -> None:
        if not session.is_stopped:
            return
        session.is_stopped = False
        if session.state is SessionState.WAITING:
            self._line_up(session, device, now_ns)
        elif session.is_holding and not session.is_ungated:
            device.start_service(session)
            session.revoked_ns = now_ns

    def _overrun(self, event: ev.SessionOverran, session: Session, device: Device, round_: Round) -> None:
        if session.state in (SessionState.ARRIVING, SessionState.LEAVING):
            return
        persistent_bytes = max(session.persistent_bytes, round_up(event.persistent_bytes))
        ephemeral_bytes = max(session.ephemeral_bytes, round_up(event.ephemeral_bytes))
        if session.state is SessionState.UNGATED:
            persistent_bytes, ephemeral_bytes = persistent_bytes + ephemeral_bytes, 0
        more_bytes = persistent_bytes - session.persistent_bytes
        if more_bytes <= device.free_bytes and device.can_always_run(more_bytes, ephemeral_bytes):
            device.persistent_bytes += more_bytes
            session.persistent_bytes, session.ephemeral_bytes = persistent_bytes, ephemeral_bytes
            device.note_size(session)
            if session.lane is not None:
                session.lane.note_size(session)
            round_.commands.append(AllowOverrun(session.id, persistent_bytes, ephemeral_bytes))
            return
        shortfall = self._overrun_shortfall(device, session, persistent_bytes, ephemeral_bytes)
        round_.commands.append(RefuseOverrun(session.id, shortfall))
        if device.limits.on_overrun is OnOverrun.KILL:
            round_.commands.append(EndSession(session.id, shortfall.text()))
        else:
            round_.commands.append(WarnSession(session.id, shortfall.text()))

    @staticmethod
    def _overrun_shortfall(device: Device, session: Session, persistent_bytes: int, ephemeral_bytes: int) -> Shortfall:
        advice = "use a smaller batch, or run once alone so that the profile is measured again"
        free_bytes = device.free_bytes + session.persistent_bytes
        if persistent_bytes > free_bytes:
            return Shortfall(f"memory of device {device.id}", persistent_bytes, free_bytes, advice=advice)
        needed_bytes = persistent_bytes + max(device.ephemeral_bytes_max, ephemeral_bytes)
        others_bytes = device.persistent_bytes - session.persistent_bytes + device.pinned_bytes
        what = f"room for the largest iteration on device {device.id}"
        return Shortfall(what, needed_bytes, device.limits.capacity_bytes - others_bytes, advice=advice)

    def _ungate(self, session: Session, device: Device, round_: Round) -> None:
        if session.is_ungated or session.state in (SessionState.UNGATED, SessionState.LEAVING):
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
            round_.commands.append(Grant(session.id, lane.id, session.epoch, None))
        elif session.state is SessionState.WAITING and not session.is_stopped:
            device.waits_of(session).remove(session.id, is_granted=False)
            self._line_up(session, device, round_.now_ns)

    def _leave(self, event: ev.SessionLeft, session: Session, device: Device, round_: Round) -> None:
        if session.state is SessionState.LEAVING:
            return
        if session.state is SessionState.ARRIVING:
            del device.arrivals[session.id]
            del device.sessions[session.id]
            del self._device_of[session.id]
            return
        lane = session.lane
        if session.state is SessionState.WAITING and not session.is_stopped:
            device.waits_of(session).remove(session.id, is_granted=False)
        elif session.is_holding:
            assert lane is not None
            self._end_grant(session, lane, device, round_.now_ns)
        session.iteration_count += max(0, event.iteration_count)
        device.book.leave(session.id)
        session.step(SessionState.LEAVING, round_.now_ns)
        if lane is not None:
            lane.leave(session)
            if not lane.sessions and lane.state is LaneState.PARKED:
                device.drop_lane(lane)
                round_.commands.append(CloseLane(lane.id))
            elif not lane.sessions and lane.state is LaneState.OPENING:
                device.start_release(lane)
                round_.commands.append(ReleaseLane(lane.id, lane.epoch))
        round_.commands.append(ReleaseSession(session.id))

    def _forget(self, session: Session, device: Device) -> None:
        if session.state is not SessionState.LEAVING:
            raise PeerError(f"release refused: session {session.id} of job {session.job}: it is still {session.state}")
        device.persistent_bytes -= session.persistent_bytes
        del device.sessions[session.id]
        del self._device_of[session.id]
