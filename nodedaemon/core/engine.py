"""The engine: events and the time go in, commands come out.

Theory of operation
-------------------
`Engine.handle` is the only function that changes state. It reads no clock and does no I/O, so the daemon, the
simulator, a replay and a test get the same commands for the same events. One call is one round on one device:

1. The service clock of the device advances to the time of the event.
2. The event is applied: to a device or a lane here, to a session in `session_events`. The tables in `sessions` and
   `lanes` list all transitions; any other transition is an error.
3. `timers.report_hung` reports holders that ignored a revoke for too long.
4. `claims.Round` serves arrivals, then waiters, then holders. It opens and releases lanes, grants and revokes.
5. `reclaim.reclaim_memory` ends sessions that keep a placed session from running: holders that cannot return their
   lane, and sessions that use more than their job was charged for.
6. `timers.set_wake` asks for a tick at the next moment at which the order can change without an event.

Why memory is safe: persistent bytes are counted from admission until `SessionReleased`, and lane bytes from `OpenLane`
until `LaneReleased`. Both are counted before the command is issued and subtracted only after the release is confirmed.
A round admits or opens only what fits `Device.free_bytes`, after the policy has chosen the order. So the sum of all
bytes never exceeds the capacity, whatever a policy or a late answer does. `invariants` checks this after every event in
tests.

Why every session makes progress: admission keeps `sum P + largest E <= C` (`Device.can_always_run`), so each session
fits if all other lanes give up their bytes. The first claim that lacks bytes revokes the lanes that it needs, and no
session behind it starts until it has them. A waiter that was overtaken `MaxOvertakes` times goes first. A holder ends
its grant at a boundary, and one that reaches no boundary is reported. If others can run without its lane, they do. If a
session that Slurm placed cannot, the holder is ended after `HangTimeout`.

Why late answers do no harm: every grant and every lane opening has an epoch of its device that only grows. An answer
with an old epoch, or for a session or lane that is gone, changes nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import assert_never

from nodedaemon.core import events as ev
from nodedaemon.core import session_events
from nodedaemon.core.commands import CloseLane, Command
from nodedaemon.core.errors import PeerError, RequestError
from nodedaemon.core.fairness import REBASE_DOUBLINGS, ServiceClock
from nodedaemon.core.memory import round_up
from nodedaemon.core.ordering import Ordering, Policy
from nodedaemon.core.policies import make_policy
from nodedaemon.core.round.claims import Round
from nodedaemon.core.round.reclaim import reclaim_memory
from nodedaemon.core.round.timers import report_hung, set_wake
from nodedaemon.core.state.lanes import Device, LaneState
from nodedaemon.core.state.sessions import Session
from nodedaemon.core.state.snapshots import EngineSnapshot, describe
from nodedaemon.core.state.views import EngineDeviceView, LaneView, SessionView
from nodedaemon.core.types import SECOND_NS, DeviceId, DeviceLimits, Epoch, LaneId, SessionId

#: How long to wait before a lane is opened again after its memory could not be allocated.
LANE_RETRY_NS = SECOND_NS


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
        if isinstance(event, ev.DeviceAdded):
            self._add_device(event, now_ns)
            return []
        device = self._find_device(event)
        if device is None:
            return []
        self._advance(device, now_ns)
        round_ = Round(device, now_ns, lambda: self._new_lane(device))
        self._apply(event, round_)
        report_hung(round_)
        round_.serve()
        reclaim_memory(round_)
        for command in round_.commands:
            if isinstance(command, CloseLane):
                del self._lane_device[command.lane]
        set_wake(round_)
        return round_.commands

    def fork(self) -> Engine:
        """An independent copy, for what-if questions."""
        return copy.deepcopy(self)

    def snapshot(self) -> EngineSnapshot:
        """The whole state as a value, for `salus status` and for comparing replays."""
        return describe(self._devices.values())

    def session(self, session: SessionId) -> SessionView | None:
        """The live session, read-only; None if it never arrived or has gone."""
        device = self._device_of.get(session)
        return None if device is None else device.sessions[session]

    def lane(self, lane: LaneId) -> LaneView | None:
        """The live lane, read-only; None if there is no such lane any more."""
        device = self._lane_device.get(lane)
        return None if device is None else device.lanes[lane]

    def holder(self, device: DeviceId, epoch: Epoch) -> SessionView | None:
        """The session that runs under this epoch, read-only; None if nobody does."""
        holders = (lane.holder for lane in self._devices[device].open_lanes.values())
        return next((holder for holder in holders if holder is not None and holder.epoch == epoch), None)

    @property
    def device_views(self) -> Mapping[DeviceId, EngineDeviceView]:
        """The live devices, read-only."""
        return self._devices

    def devices(self) -> tuple[Device, ...]:
        """The live state, for the core itself: invariants, snapshots and explanations."""
        return tuple(self._devices.values())

    @property
    def counts(self) -> tuple[int, int]:
        """The number of lanes and arrivals so far, from which ids continue."""
        return self._lane_count, self._arrival_count

    def restore(self, devices: Iterable[Device], lane_count: int, arrival_count: int) -> None:
        """Adopt the state of another engine; for `core.state.frozen`, on an unused engine."""
        assert not self._devices
        for device in devices:
            self._devices[device.id] = device
            self._device_of.update(dict.fromkeys(device.sessions, device))
            self._lane_device.update(dict.fromkeys(device.lanes, device))
        self._lane_count, self._arrival_count = lane_count, arrival_count

    # Finding

    def _find_device(self, event: ev.Event) -> Device | None:
        if isinstance(event, (ev.AboutDevice, ev.SessionArrived)):
            device = self._devices.get(event.device)
            if device is None:
                raise RequestError(f"device unknown: {event.device}: not on this node; see salus status")
            if isinstance(event, ev.SessionArrived) and event.session in self._device_of:
                raise PeerError(f"session refused: {event.session}: that id is in use; ids are never reused")
            return device
        if isinstance(event, ev.AboutLane):
            return self._lane_device.get(event.lane)
        device = self._device_of.get(event.session)
        if device is None and isinstance(event, ev.GrantWanted):
            raise PeerError(f"session unknown: {event.session}: gone or never arrived; end its connection")
        return device

    def _add_device(self, event: ev.DeviceAdded, now_ns: int) -> None:
        if event.device in self._devices:
            raise RequestError(f"device refused: {event.device}: it already exists; add each device only once")
        clock = ServiceClock(now_ns, now_ns, event.limits.service_half_life_ns)
        ordering = Ordering(self._make_policy(event.limits))
        self._devices[event.device] = Device(event.device, event.limits, clock, ordering=ordering)

    def _new_lane(self, device: Device) -> LaneId:
        self._lane_count += 1
        lane = LaneId(self._lane_count)
        self._lane_device[lane] = device
        return lane

    @staticmethod
    def _advance(device: Device, now_ns: int) -> None:
        device.clock.advance(now_ns)
        if device.clock.doublings() >= REBASE_DOUBLINGS:
            device.clock.rebase()
            device.rescale(REBASE_DOUBLINGS)
            device.rekey(now_ns)

    # Applying

    def _apply(self, event: ev.Event, round_: Round) -> None:
        device = round_.device
        if isinstance(event, ev.AboutDevice):
            self._apply_device(event, round_)
        elif isinstance(event, ev.AboutLane):
            self._apply_lane(event, round_)
        elif isinstance(event, ev.SessionArrived):
            self._arrive(event, round_)
        else:
            session_events.apply(event, device.sessions[event.session], round_)
            if event.session not in device.sessions:
                del self._device_of[event.session]

    def _apply_device(self, event: ev.DeviceEvent, round_: Round) -> None:
        device = round_.device
        match event:
            case ev.DeviceDrained():
                device.drain_reason = event.reason
            case ev.DeviceResumed():
                device.drain_reason = None
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
                f"limits refused: device {device.id}: {used_bytes} bytes are in use, more than the new capacity of "
                f"{limits.capacity_bytes}; drain the device first"
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
        for session in device.sessions.values():
            device.note_charge(session)
        device.rekey(now_ns)

    @staticmethod
    def _apply_lane(event: ev.LaneEvent, round_: Round) -> None:
        lane = round_.device.lanes[event.lane]
        awaited = LaneState.RELEASING if isinstance(event, ev.LaneReleased) else LaneState.OPENING
        if event.epoch != lane.epoch or lane.state is not awaited:
            return
        if isinstance(event, ev.LaneOpened):
            lane.step(LaneState.OPEN)
            lane.opened_ns = lane.returned_ns = round_.now_ns
            return
        if isinstance(event, ev.LaneFailed):
            lane.retry_ns = round_.now_ns + LANE_RETRY_NS
        round_.device.end_release(lane)
        round_.drop_if_empty(lane)

    def _arrive(self, event: ev.SessionArrived, round_: Round) -> None:
        if min(event.persistent_bytes, event.ephemeral_bytes) < 0 or event.weight < 1:
            raise PeerError(
                f"session refused: {event.session}: sizes must not be negative, and the weight must be at least 1"
            )
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
            is_placed=event.is_placed,
        )
        device = round_.device
        # Slurm charged the job once, whatever the number of its sessions.
        if not any(one.job == session.job for one in device.sessions.values()):
            session.charged_persistent_bytes = session.persistent_bytes
            session.charged_ephemeral_bytes = session.ephemeral_bytes
        device.sessions[session.id] = device.arrivals[session.id] = session
        device.note_charge(session)
        self._device_of[session.id] = device
