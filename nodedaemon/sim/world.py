"""One device in virtual time: sessions that run iterations under the engine's grants.

The engine decides; this carries out its commands and tells it what happened. A lane is opened, and memory released, at
once. A session under a lease runs one iteration after another until its grant ends, its work is done or, for a server,
no request is left. What the daemon writes at a moment is seen at the boundaries after it, not at one of the same
nanosecond; therefore iterations between decisions can be taken together without changing anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from nodedaemon.core import commands as cmd
from nodedaemon.core import events as ev
from nodedaemon.core import invariants
from nodedaemon.core.engine import Engine
from nodedaemon.core.types import DeviceId, DeviceLimits, Epoch, JobId, LaneId, LaneSharing, SessionId
from nodedaemon.sim.clock import Appointment, Clock, Due
from nodedaemon.sim.results import Record, ShareMeter
from nodedaemon.sim.speed import WORK_SCALE, Speeds

#: An engine that is woken so often while nothing else happens would spin in a daemon too.
IDLE_TICKS_MAX = 10_000
#: The whole state is recounted once in so many events: often enough to find a fault, at no cost that shows.
EVENTS_PER_CHECK = 1_000


@dataclass(frozen=True, slots=True)
class Rules:
    """What all devices of a run have in common."""

    limits: DeviceLimits
    lane_sharing: LaneSharing = LaneSharing.USER
    #: Wake up at every boundary instead of at those where something is decided; the outcome is the same.
    is_single_step: bool = False
    #: Of a job that starts up on the device's cores, against a running iteration; 0: it starts on cores of its own.
    startup_weight: float = 0.0


@dataclass(frozen=True, slots=True)
class Turn:
    """Time for which a job held one grant in one lane."""

    number: int
    lane: LaneId
    start_ns: int
    end_ns: int


class Starter:
    """A job that is placed and not ready to run: it holds no lane, and is not gated."""

    __slots__ = ("number", "piece", "position", "rate", "record")

    def __init__(self, number: int, record: Record) -> None:
        self.number, self.record = number, record
        self.piece = record.job.startup_ns * WORK_SCALE
        self.position = self.rate = 0


class _Seat:
    """One session on the device: what is left of its job, and the iterations under its present grant."""

    __slots__ = (
        "begun_ns",
        "contended_from",
        "done_count",
        "epoch",
        "is_admitted",
        "is_waiting",
        "lane",
        "metered",
        "number",
        "pending_count",
        "piece",
        "position",
        "rate",
        "record",
        "requested_ns",
        "revoked_ns",
        "stop_count",
        "successor",
        "successor_epoch",
    )

    def __init__(self, number: int, record: Record) -> None:
        self.number, self.record = number, record
        self.piece = record.job.iteration_ns * WORK_SCALE
        self.done_count = 0
        self.pending_count = record.job.iteration_count if record.job.request_offsets_ns is None else 0
        self.requested_ns: deque[int] = deque()
        self.is_admitted = self.is_waiting = False
        self.lane: LaneId | None = None
        self.epoch: Epoch | None = None
        self.position = self.metered = self.rate = 0
        self.begun_ns = 0
        self.stop_count: int | None = None
        self.contended_from: int | None = None
        self.revoked_ns: int | None = None
        self.successor: int | None = None
        self.successor_epoch: Epoch | None = None

    @property
    def iteration_count(self) -> int:
        """Iterations finished under the present grant."""
        return self.position // self.piece

    @property
    def target_count(self) -> int:
        """Iterations under the present grant after which something happens."""
        if self.stop_count is None or self.stop_count > self.pending_count:
            return self.pending_count
        return self.stop_count


class World:
    """A device, its engine and its sessions; `ended` is told the number of each job that is gone."""

    def __init__(
        self,
        number: int,
        clock: Clock,
        rules: Rules,
        speeds: Speeds,
        meter: ShareMeter | None,
        ended: Callable[[int], None],
        watch: Callable[[Turn], None] | None = None,
    ) -> None:
        self._number, self._clock, self._rules, self._speeds = number, clock, rules, speeds
        self._meter, self._ended, self._watch = meter, ended, watch
        self.engine = Engine()
        self._device = DeviceId(f"device{number}")
        self._seats: dict[int, _Seat] = {}
        self._running: dict[int, _Seat] = {}
        self._starting: dict[int, Starter] = {}
        self._events: deque[ev.Event] = deque()
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

    def start(self, number: int, record: Record) -> None:
        """Place a job here: its session arrives as soon as it has started up."""
        self._settle()
        startup_ns = record.job.startup_ns
        if not startup_ns:
            self._arrive(number, record)
        elif self._rules.startup_weight:
            self._starting[number] = Starter(number, record)
            self._is_stale = True
            self._plan()
        else:
            at_ns = self._clock.now_ns + startup_ns
            self._clock.put(at_ns, Due.SUBMISSION, number, lambda: self._arrive(number, record))

    def _arrive(self, number: int, record: Record) -> None:
        self._settle()
        self._seats[number] = _Seat(number, record)
        job = record.job
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
        """Tell the meter what was done up to now."""
        self._settle()
        if self._meter is not None:
            for seat in self._running.values():
                self._meter.serve(seat.number, seat.record.job, (seat.position - seat.metered) / WORK_SCALE)
                seat.metered = seat.position

    def _feed(self, event: ev.Event) -> None:
        """Handle an event and all that follows from it at this moment."""
        self._events.append(event)
        while self._events:
            event = self._events.popleft()
            self.event_count += 1
            if not isinstance(event, ev.Ticked):
                self._tick_count = 0
            for command in self.engine.handle(event, self._clock.now_ns):
                self._carry_out(command)
            if self.event_count % EVENTS_PER_CHECK == 0:
                invariants.check(self.engine)
        self._plan()
        while self._gone:
            self._ended(self._gone.pop(0))

    def _carry_out(self, command: cmd.Command) -> None:
        match command:
            case cmd.Grant():
                self._grant(command)
            case cmd.LimitGrant():
                self._limit(command)
            case cmd.Revoke():
                self._revoke(command)
            case cmd.OpenLane():
                self.opening_count += 1
                self._events.append(ev.LaneOpened(command.lane, command.epoch))
            case cmd.ReleaseLane():
                self._events.append(ev.LaneReleased(command.lane, command.epoch))
            case cmd.CloseLane():
                self._last_holder.pop(command.lane, None)
            case cmd.AdmitSession():
                self._admit(command)
            case cmd.ReleaseSession():
                self._release_session(command)
            case cmd.WakeAt():
                self._wake_at(command)
            case cmd.BindSession() | cmd.WarnSession() | cmd.ReportOverdue():
                # A grant names its lane again, and warnings change nothing that is simulated.
                pass
            case cmd.EndSession() | cmd.AllowOverrun() | cmd.RefuseOverrun():
                raise AssertionError(f"simulate: device {self._number}: {command}: no workload asks for it")
            case _:
                assert_never(command)

    def _admit(self, command: cmd.AdmitSession) -> None:
        seat = self._seats[command.session]
        # A command may come twice; the second changes nothing.
        if seat.is_admitted:
            return
        seat.is_admitted = True
        offsets = seat.record.job.request_offsets_ns
        if offsets is None:
            self._want(seat)
            return
        for offset_ns in offsets:
            at_ns = self._clock.now_ns + offset_ns
            self._clock.put(at_ns, Due.REQUEST, seat.number, lambda: self._request(seat))

    def _request(self, seat: _Seat) -> None:
        self._settle()
        seat.requested_ns.append(self._clock.now_ns)
        seat.pending_count += 1
        self._is_stale = True
        if seat.epoch is None and not seat.is_waiting:
            seat.is_waiting = True
            self._feed(ev.GrantWanted(SessionId(seat.number)))
        else:
            self._plan()

    def _want(self, seat: _Seat) -> None:
        seat.is_waiting = True
        self._events.append(ev.GrantWanted(SessionId(seat.number)))

    def _grant(self, command: cmd.Grant) -> None:
        seat = self._seats.get(command.session)
        if seat is not None and seat.epoch != command.epoch:
            self._begin(seat, command.lane, command.epoch, command.iteration_limit)

    def _begin(self, seat: _Seat, lane: LaneId, epoch: Epoch, iteration_limit: int | None) -> None:
        assert seat.epoch is None
        assert seat.is_waiting
        if self._last_holder.get(lane, seat.number) != seat.number:
            self.hand_over_count += 1
        self._last_holder[lane] = seat.number
        seat.is_waiting, seat.lane, seat.epoch = False, lane, epoch
        seat.position = seat.metered = 0
        seat.begun_ns = self._clock.now_ns
        seat.stop_count, seat.revoked_ns = iteration_limit, None
        seat.contended_from = None if iteration_limit is None else 1
        seat.successor = seat.successor_epoch = None
        if seat.record.start_ns is None:
            seat.record.start_ns = self._clock.now_ns
        self._running[seat.number] = seat
        self._is_stale = True

    def _limit(self, command: cmd.LimitGrant) -> None:
        seat = self._holder(command.session, command.epoch)
        if seat is not None:
            started = seat.iteration_count + 1
            seat.stop_count = started + command.iteration_count
            if seat.contended_from is None:
                seat.contended_from = started
            self._is_stale = True

    def _revoke(self, command: cmd.Revoke) -> None:
        seat = self._holder(command.session, command.epoch)
        if seat is not None:
            if seat.revoked_ns is None:
                seat.stop_count = seat.iteration_count + 1
                seat.revoked_ns = self._clock.now_ns
            seat.successor, seat.successor_epoch = command.successor, command.successor_epoch
            self._is_stale = True

    def _holder(self, session: SessionId, epoch: Epoch) -> _Seat | None:
        seat = self._seats.get(session)
        return seat if seat is not None and seat.epoch == epoch else None

    def _release_session(self, command: cmd.ReleaseSession) -> None:
        self._events.append(ev.SessionReleased(command.session))
        if self._seats.pop(command.session, None) is not None:
            self._gone.append(command.session)

    def _wake_at(self, command: cmd.WakeAt) -> None:
        if self._wake is not None:
            self._wake.cancel()
        at_ns = max(command.at_ns, self._clock.now_ns)
        self._wake = self._clock.put(at_ns, Due.WAKE, self._number, self._tick)

    def _tick(self) -> None:
        self._settle()
        self._tick_count += 1
        assert self._tick_count < IDLE_TICKS_MAX, f"simulate: device {self._number}: the engine wakes up for nothing"
        self._feed(ev.Ticked(self._device))

    def _settle(self) -> None:
        passed_ns, self._settled_ns = self._clock.now_ns - self._settled_ns, self._clock.now_ns
        if passed_ns:
            for seat in self._running.values():
                seat.position += seat.rate * passed_ns
            for starter in self._starting.values():
                starter.position += starter.rate * passed_ns

    def _plan(self) -> None:
        """Set everybody's speed and the next moment at which a boundary matters."""
        if not self._is_stale:
            return
        self._is_stale = False
        seats = list(self._running.values())
        next_ns: int | None = None
        models = [seat.record.job.model for seat in seats]
        rates, starter_rate = self._speeds.rates_beside(models, len(self._starting), self._rules.startup_weight)
        for seat, rate in zip(seats, rates, strict=True):
            seat.rate = rate
            count = seat.iteration_count + 1 if self._rules.is_single_step else seat.target_count
            left_ns = -(-(count * seat.piece - seat.position) // rate)
            next_ns = left_ns if next_ns is None else min(next_ns, left_ns)
        for starter in self._starting.values():
            starter.rate = starter_rate
            left_ns = -(-(starter.piece - starter.position) // starter_rate)
            next_ns = left_ns if next_ns is None else min(next_ns, left_ns)
        if self._boundary is not None:
            self._boundary.cancel()
            self._boundary = None
        if next_ns is not None:
            at_ns = self._clock.now_ns + next_ns
            self._boundary = self._clock.put(at_ns, Due.BOUNDARY, self._number, self._reach_boundary)

    def _reach_boundary(self) -> None:
        self.report()
        self._is_stale = True
        # Counted before the first of them is told: what the engine answers is seen at later boundaries only.
        due = [(s.number, s.target_count) for s in self._running.values() if s.iteration_count >= s.target_count]
        ready = sorted(number for number, starter in self._starting.items() if starter.position >= starter.piece)
        for number, count in sorted(due):
            self._finish(self._running[number], count)
        for number in ready:
            self._arrive(number, self._starting.pop(number).record)
        self._plan()
        if self._meter is not None:
            self._meter.sample()

    def _finish(self, seat: _Seat, count: int) -> None:
        """The grant ends at this boundary, after `count` iterations."""
        now_ns = self._clock.now_ns
        assert seat.epoch is not None
        epoch, lane, contended_from = seat.epoch, seat.lane, seat.contended_from
        assert lane is not None
        del self._running[seat.number]
        if self._watch is not None:
            self._watch(Turn(seat.number, lane, seat.begun_ns, now_ns))
        seat.epoch = seat.lane = None
        seat.done_count += count
        seat.pending_count -= count
        self._answer_requests(seat, count)
        is_over = seat.done_count == seat.record.job.iteration_count
        wants_next = seat.pending_count > 0
        seat.is_waiting = wants_next
        successor = self._seats.get(seat.successor) if seat.successor is not None else None
        handed_over = None
        if successor is not None and successor.is_waiting and seat.revoked_ns is not None and seat.revoked_ns < now_ns:
            handed_over = seat.successor_epoch
            assert handed_over is not None
            self._begin(successor, lane, handed_over, None)
        contended_count = 0 if contended_from is None else max(0, count - contended_from)
        session = SessionId(seat.number)
        returned = ev.GrantReturned(session, epoch, count, contended_count, wants_next, handed_over)
        if is_over:
            seat.record.end_ns = now_ns
            self._events.append(returned)
            self._feed(ev.SessionLeft(session))
        else:
            self._feed(returned)

    def _answer_requests(self, seat: _Seat, count: int) -> None:
        job = seat.record.job
        if job.request_offsets_ns is not None:
            for place in range(count):
                # The last of `count` iterations ends now, the others one iteration earlier each.
                ended_ns = self._clock.now_ns - (count - 1 - place) * job.iteration_ns
                seat.record.request_wait_ns += max(0, ended_ns - seat.requested_ns.popleft() - job.iteration_ns)
