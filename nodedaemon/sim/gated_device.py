"""One device in virtual time, with lanes: sessions run iterations under the engine's grants.

The engine decides, a `SimulatedNode` carries out its commands, and this class adds time. Opening a lane and releasing
memory take no time. A session with a lease runs one iteration after another until its grant ends, its work is done or,
for a server, no request is left. A command that is issued at some moment takes effect at later boundaries, never at a
boundary of the same nanosecond. Therefore iterations between two decisions can be simulated together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from nodedaemon.core import commands as cmd
from nodedaemon.core import events as ev
from nodedaemon.core import invariants
from nodedaemon.core.engine import Engine
from nodedaemon.core.types import DeviceId, DeviceLimits, JobId, LaneId, LaneSharing, SessionId
from nodedaemon.sim.clock import Appointment, Due, VirtualClock
from nodedaemon.sim.node import HeldGrant, SimulatedNode
from nodedaemon.sim.results import JobTimes, ShareMeter
from nodedaemon.sim.speed import WORK_SCALE, Speeds

#: An engine that asks to be woken this often while nothing else happens would spin in a daemon, too.
IDLE_TICKS_MAX = 10_000
#: The whole state is checked once per this many events: often enough to find a fault, and too rare to cost time.
EVENTS_PER_CHECK = 1_000


@dataclass(frozen=True, slots=True)
class DeviceRules:
    """What all devices of a run have in common."""

    limits: DeviceLimits
    speeds: Speeds
    lane_sharing: LaneSharing = LaneSharing.USER
    #: Wake up at every boundary instead of only at those where something is decided; the result is the same.
    is_single_step: bool = False
    #: Weight of a job that starts up on the device's cores against a running iteration; 0: it starts elsewhere.
    startup_weight: float = 0.0


@dataclass(frozen=True, slots=True)
class Turn:
    """Time for which a job held one grant in one lane."""

    number: int
    lane: LaneId
    start_ns: int
    end_ns: int


class Starter:
    """A job that is placed and still starting up: it holds no lane and is not gated."""

    __slots__ = ("number", "piece", "position", "rate", "times")

    def __init__(self, number: int, times: JobTimes) -> None:
        self.number, self.times = number, times
        self.piece = times.job.startup_ns * WORK_SCALE
        self.position = self.rate = 0


class _Seat:
    """One session on the device: the rest of its job, and its progress under the present grant."""

    __slots__ = (
        "begun_ns",
        "done_count",
        "grant",
        "is_waiting",
        "metered",
        "number",
        "pending_count",
        "piece",
        "position",
        "rate",
        "requested_ns",
        "times",
    )

    def __init__(self, number: int, times: JobTimes) -> None:
        self.number, self.times = number, times
        self.piece = times.job.iteration_ns * WORK_SCALE
        self.done_count = 0
        self.pending_count = times.job.iteration_count if times.job.request_offsets_ns is None else 0
        self.requested_ns: deque[int] = deque()
        self.is_waiting = False
        self.grant: HeldGrant | None = None
        self.position = self.metered = self.rate = 0
        self.begun_ns = 0

    def held_grant(self) -> HeldGrant:
        assert self.grant is not None
        return self.grant

    def progress(self, passed_ns: int) -> None:
        self.position += self.rate * passed_ns
        self.held_grant().iteration_count = self.position // self.piece

    @property
    def target_count(self) -> int:
        """Iterations under the present grant after which something happens."""
        stop_count = self.held_grant().stop_count
        return self.pending_count if stop_count is None else min(stop_count, self.pending_count)


class GatedDevice:
    """A device, its engine and its sessions. It calls `ended` with the number of each job whose memory is free."""

    def __init__(
        self,
        number: int,
        clock: VirtualClock,
        rules: DeviceRules,
        meter: ShareMeter | None,
        ended: Callable[[int], None],
        watch: Callable[[Turn], None] | None = None,
    ) -> None:
        self._number, self._clock, self._rules = number, clock, rules
        self._meter, self._ended, self._watch = meter, ended, watch
        self._node = SimulatedNode(Engine())
        self._device = DeviceId(f"device{number}")
        self._seats: dict[int, _Seat] = {}
        self._running: dict[int, _Seat] = {}
        self._starting: dict[int, Starter] = {}
        self._gone: list[int] = []
        self._last_holder: dict[LaneId, int] = {}
        self._settled_ns = 0
        self._is_stale = False
        self._boundary: Appointment | None = None
        self._wake: Appointment | None = None
        self._tick_count = 0
        self.hand_over_count = self.opening_count = 0
        self.event_count = 0
        self._feed(ev.DeviceAdded(self._device, rules.limits))

    def start(self, number: int, times: JobTimes) -> None:
        """Place a job here. Its session arrives as soon as it has started up."""
        self._settle()
        startup_ns = times.job.startup_ns
        if not startup_ns:
            self._arrive(number, times)
        elif self._rules.startup_weight:
            self._starting[number] = Starter(number, times)
            self._is_stale = True
            self._plan()
        else:
            at_ns = self._clock.now_ns + startup_ns
            self._clock.put(at_ns, Due.SUBMISSION, number, lambda: self._arrive(number, times))

    def _arrive(self, number: int, times: JobTimes) -> None:
        self._settle()
        self._seats[number] = _Seat(number, times)
        job = times.job
        self._feed(
            ev.SessionArrived(
                session=SessionId(number),
                device=self._device,
                job=JobId(job.id),
                domain=self._rules.lane_sharing.domain(job.user, job.account),
                persistent_bytes=job.persistent_bytes,
                ephemeral_bytes=job.ephemeral_bytes,
                job_class=job.job_class,
                weight=job.weight,
                remaining_ns=job.work_ns,
            )
        )

    def report(self) -> None:
        """Tell the meter how much work was done up to now."""
        self._settle()
        if self._meter is not None:
            for seat in self._running.values():
                self._meter.serve(seat.number, seat.times.job, (seat.position - seat.metered) / WORK_SCALE)
                seat.metered = seat.position

    def _feed(self, event: ev.Event) -> None:
        """Let the engine handle an event and everything that follows from it at this moment."""
        node, now_ns = self._node, self._clock.now_ns
        node.due.append(event)
        while node.due:
            event = node.next_event()
            self.event_count += 1
            if not isinstance(event, ev.Ticked):
                self._tick_count = 0
            for command in node.engine.handle(event, now_ns):
                node.carry_out(command, now_ns)
                self._follow(command)
            if self.event_count % EVENTS_PER_CHECK == 0:
                invariants.check(node.engine)
        self._plan()
        while self._gone:
            self._ended(self._gone.pop(0))

    def _follow(self, command: cmd.Command) -> None:
        """Do what a command means for the passing of time, once the node has carried it out."""
        match command:
            case cmd.Grant(session):
                self._begin(self._seats[session])
            case cmd.LimitGrant() | cmd.Revoke():
                self._is_stale = True
            case cmd.OpenLane():
                self.opening_count += 1
            case cmd.CloseLane(lane):
                self._last_holder.pop(lane, None)
            case cmd.AdmitSession(session):
                self._begin_work(self._seats[session])
            case cmd.ReleaseSession(session):
                del self._seats[session]
                self._gone.append(session)
            case cmd.WakeAt(_, at_ns):
                self._wake_at(at_ns)
            case cmd.EndSession() | cmd.AllowOverrun() | cmd.RefuseOverrun():
                raise AssertionError(f"simulate: device {self._number}: {command}: no workload causes it")

    def _begin_work(self, seat: _Seat) -> None:
        offsets = seat.times.job.request_offsets_ns
        if offsets is None:
            seat.is_waiting = True
            self._node.due.append(ev.GrantWanted(SessionId(seat.number)))
            return
        for offset_ns in offsets:
            at_ns = self._clock.now_ns + offset_ns
            self._clock.put(at_ns, Due.REQUEST, seat.number, lambda: self._request(seat))

    def _request(self, seat: _Seat) -> None:
        self._settle()
        seat.requested_ns.append(self._clock.now_ns)
        seat.pending_count += 1
        self._is_stale = True
        if seat.grant is None and not seat.is_waiting:
            seat.is_waiting = True
            self._feed(ev.GrantWanted(SessionId(seat.number)))
        else:
            self._plan()

    def _begin(self, seat: _Seat) -> None:
        """The session's first iteration under a new grant starts."""
        assert seat.is_waiting
        seat.grant = self._node.grants[SessionId(seat.number)]
        lane = seat.grant.lane
        if self._last_holder.get(lane, seat.number) != seat.number:
            self.hand_over_count += 1
        self._last_holder[lane] = seat.number
        seat.is_waiting = False
        seat.position = seat.metered = 0
        seat.begun_ns = self._clock.now_ns
        if seat.times.start_ns is None:
            seat.times.start_ns = self._clock.now_ns
        self._running[seat.number] = seat
        self._is_stale = True

    def _wake_at(self, at_ns: int) -> None:
        if self._wake is not None:
            self._wake.cancel()
        self._wake = self._clock.put(max(at_ns, self._clock.now_ns), Due.WAKE, self._number, self._tick)

    def _tick(self) -> None:
        self._settle()
        self._tick_count += 1
        assert self._tick_count < IDLE_TICKS_MAX, f"simulate: device {self._number}: the engine wakes up for nothing"
        self._feed(ev.Ticked(self._device))

    def _settle(self) -> None:
        """Bring every session's progress up to now."""
        passed_ns, self._settled_ns = self._clock.now_ns - self._settled_ns, self._clock.now_ns
        if passed_ns:
            for seat in self._running.values():
                seat.progress(passed_ns)
            for starter in self._starting.values():
                starter.position += starter.rate * passed_ns

    def _plan(self) -> None:
        """Set the speed of every session and the next moment at which a boundary matters."""
        if not self._is_stale:
            return
        self._is_stale = False
        seats = list(self._running.values())
        models = [seat.times.job.model for seat in seats]
        rates, starter_rate = self._rules.speeds.rates_beside(models, len(self._starting), self._rules.startup_weight)
        left_ns = []
        for seat, rate in zip(seats, rates, strict=True):
            seat.rate = rate
            count = seat.held_grant().iteration_count + 1 if self._rules.is_single_step else seat.target_count
            left_ns.append(-(-(count * seat.piece - seat.position) // rate))
        for starter in self._starting.values():
            starter.rate = starter_rate
            left_ns.append(-(-(starter.piece - starter.position) // starter_rate))
        self._boundary = self._clock.move(
            self._boundary, min(left_ns, default=None), Due.BOUNDARY, self._number, self._reach_boundary
        )

    def _reach_boundary(self) -> None:
        self.report()
        self._is_stale = True
        # Collect all before the first one returns its grant: the engine's answer takes effect at later boundaries only.
        due = [
            (seat.number, seat.target_count)
            for seat in self._running.values()
            if seat.held_grant().iteration_count >= seat.target_count
        ]
        ready = sorted(number for number, starter in self._starting.items() if starter.position >= starter.piece)
        for number, count in sorted(due):
            self._finish(self._running[number], count)
        for number in ready:
            self._arrive(number, self._starting.pop(number).times)
        self._plan()
        if self._meter is not None:
            self._meter.sample()

    def _finish(self, seat: _Seat, count: int) -> None:
        """The grant ends at this boundary, after `count` iterations."""
        now_ns, grant = self._clock.now_ns, seat.held_grant()
        del self._running[seat.number]
        if self._watch is not None:
            self._watch(Turn(seat.number, grant.lane, seat.begun_ns, now_ns))
        seat.grant, grant.iteration_count = None, count
        seat.done_count += count
        seat.pending_count -= count
        self._answer_requests(seat, count)
        seat.is_waiting = seat.pending_count > 0
        successor = None if grant.successor is None else self._seats.get(grant.successor[0])
        hands_over = successor is not None and successor.is_waiting and (grant.revoked_ns or 0) < now_ns
        returned = self._node.return_grant(SessionId(seat.number), wants_next=seat.is_waiting, hands_over=hands_over)
        if hands_over and successor is not None:
            self._begin(successor)
        if seat.done_count == seat.times.job.iteration_count:
            seat.times.end_ns = now_ns
            self._node.due.append(returned)
            self._feed(ev.SessionLeft(SessionId(seat.number)))
        else:
            self._feed(returned)

    def _answer_requests(self, seat: _Seat, count: int) -> None:
        job = seat.times.job
        if job.request_offsets_ns is not None:
            for place in range(count):
                # The last of `count` iterations ends now, each of the others one iteration earlier.
                ended_ns = self._clock.now_ns - (count - 1 - place) * job.iteration_ns
                seat.times.request_wait_ns += max(0, ended_ns - seat.requested_ns.popleft() - job.iteration_ns)
