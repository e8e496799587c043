"""A device with lanes: jobs run iterations under the engine's grants.

The engine decides, a `SimulatedNode` carries out its commands, and this class adds time. Opening a lane and releasing
memory take no time. A session with a lease runs one iteration after another until its grant ends, its work is done or,
for a server, no request is left. A command that is issued at some moment takes effect at later boundaries, never at a
boundary of the same nanosecond. Therefore iterations between two decisions can be simulated together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from nodedaemon.core import commands as cmd
from nodedaemon.core import events as ev
from nodedaemon.core.engine import Engine
from nodedaemon.core.state import invariants
from nodedaemon.core.types import DeviceId, DeviceLimits, JobId, LaneId, SessionId
from nodedaemon.sim.clock import Timer, TimerKind
from nodedaemon.sim.device import PlacedJob, SimulatedDevice, SimulationSetup
from nodedaemon.sim.node import HeldGrant, SimulatedNode
from nodedaemon.sim.results import JobTimes, Turn
from nodedaemon.sim.site import Site
from nodedaemon.sim.speed import WORK_SCALE

#: An engine that asks to be woken this often while nothing else happens would also spin in a daemon.
IDLE_TICKS_MAX = 10_000
#: The whole state is checked once per this many events: often enough to find a fault, rarely enough to cost little.
EVENTS_PER_CHECK = 1_000


@dataclass(slots=True, eq=False)
class GatedJob(PlacedJob):
    """A job with its session: the iterations that are left, and the grant that it holds."""

    #: Iterations that were requested from a server, or that a batch job has left.
    pending_count: int = 0
    done_count: int = 0
    requested_ns: deque[int] = field(default_factory=deque)
    is_waiting: bool = False
    grant: HeldGrant | None = None
    granted_ns: int = 0

    @property
    def piece(self) -> int:
        return self.times.job.iteration_ns * WORK_SCALE

    def held_grant(self) -> HeldGrant:
        assert self.grant is not None
        return self.grant

    @property
    def target_count(self) -> int:
        """Iterations under the current grant after which it ends or no work is left."""
        stop_count = self.held_grant().stop_count
        return self.pending_count if stop_count is None else min(stop_count, self.pending_count)


class GatedDevice(SimulatedDevice[GatedJob]):
    """A device, its engine and its sessions. It calls `on_turn` with every turn that ends."""

    def __init__(
        self,
        number: int,
        site: Site,
        setup: SimulationSetup,
        limits: DeviceLimits,
        on_turn: Callable[[Turn], None] | None,
    ) -> None:
        super().__init__(number, site, setup)
        self._on_turn = on_turn
        self._node = SimulatedNode(Engine())
        self._device = DeviceId(f"device{number}")
        self._jobs: dict[int, GatedJob] = {}
        self._running: dict[int, GatedJob] = {}
        self._last_holder: dict[LaneId, int] = {}
        #: The speeds, or the next boundary that matters, have changed.
        self._is_stale = False
        self._wake: Timer | None = None
        self._tick_count = 0
        self.hand_over_count = self.opening_count = 0
        self._event_count = 0
        self._handle(ev.DeviceAdded(self._device, limits))

    def _begin(self, number: int, times: JobTimes) -> None:
        """The session arrives."""
        self._advance()
        job = times.job
        pending_count = job.iteration_count if job.request_offsets_ns is None else 0
        self._jobs[number] = GatedJob(number, times, pending_count=pending_count)
        self._handle(
            ev.SessionArrived(
                session=SessionId(number),
                device=self._device,
                job=JobId(job.id),
                domain=self._setup.lane_sharing.domain(job.user, job.account),
                persistent_bytes=job.persistent_bytes,
                ephemeral_bytes=job.ephemeral_bytes,
                job_class=job.job_class,
                weight=job.weight,
                remaining_ns=job.work_ns,
            )
        )

    def _handle(self, event: ev.Event) -> None:
        """Let the engine handle an event, and all events that follow from it at this moment."""
        node, now_ns = self._node, self._clock.now_ns
        node.due.append(event)
        while node.due:
            event = node.next_event()
            self._event_count += 1
            if not isinstance(event, ev.Ticked):
                self._tick_count = 0
            for command in node.engine.handle(event, now_ns):
                node.carry_out(command, now_ns)
                self._follow(command)
            if self._event_count % EVENTS_PER_CHECK == 0:
                invariants.check(node.engine)
        if self._is_stale:
            self._plan()
        self._report_gone()

    def _follow(self, command: cmd.Command) -> None:
        """Apply a command that the node has carried out: start, limit or end the work of a job."""
        match command:
            case cmd.Grant(session):
                self._run(self._jobs[session])
            case cmd.LimitGrant() | cmd.Revoke():
                self._is_stale = True
            case cmd.OpenLane():
                self.opening_count += 1
            case cmd.CloseLane(lane):
                self._last_holder.pop(lane, None)
            case cmd.AdmitSession(session):
                self._begin_work(self._jobs[session])
            case cmd.ReleaseSession(session):
                del self._jobs[session]
                self._gone.append(session)
            case cmd.WakeAt(_, at_ns):
                self._wake_at(at_ns)
            case cmd.EndSession() | cmd.AllowOverrun() | cmd.RefuseOverrun():
                raise AssertionError(f"simulate: device {self._number}: {command}: no workload causes it")

    def _begin_work(self, job: GatedJob) -> None:
        if job.times.job.request_offsets_ns is None:
            job.is_waiting = True
            self._node.due.append(ev.GrantWanted(SessionId(job.number)))
        else:
            self._expect_requests(job)

    def _request(self, job: GatedJob) -> None:
        self._advance()
        job.requested_ns.append(self._clock.now_ns)
        job.pending_count += 1
        if job.grant is None and not job.is_waiting:
            job.is_waiting = True
            self._handle(ev.GrantWanted(SessionId(job.number)))
        else:
            self._plan()

    def _run(self, job: GatedJob) -> None:
        """The session's first iteration under a new grant starts."""
        assert job.is_waiting
        job.grant = self._node.grants[SessionId(job.number)]
        lane = job.grant.lane
        if self._last_holder.get(lane, job.number) != job.number:
            self.hand_over_count += 1
        self._last_holder[lane] = job.number
        job.is_waiting = False
        job.position = job.metered = 0
        job.granted_ns = self._clock.now_ns
        if job.times.start_ns is None:
            job.times.start_ns = self._clock.now_ns
        self._running[job.number] = job
        self._is_stale = True

    def _wake_at(self, at_ns: int) -> None:
        if self._wake is not None:
            self._wake.cancel()
        self._wake = self._clock.call_at(max(at_ns, self._clock.now_ns), TimerKind.WAKE, self._number, self._tick)

    def _tick(self) -> None:
        self._advance()
        self._tick_count += 1
        assert self._tick_count < IDLE_TICKS_MAX, f"simulate: device {self._number}: the engine wakes up for nothing"
        self._handle(ev.Ticked(self._device))

    def _busy(self) -> list[GatedJob]:
        return list(self._running.values())

    def _target(self, job: GatedJob) -> int:
        count = job.held_grant().iteration_count + 1 if self._setup.is_single_step else job.target_count
        return count * job.piece

    def _advance(self) -> None:
        super()._advance()
        for job in self._running.values():
            job.held_grant().iteration_count = job.position // job.piece

    def _plan(self) -> None:
        self._is_stale = False
        super()._plan()

    def _reach_boundary(self) -> None:
        super()._reach_boundary()
        if self._meter is not None:
            self._meter.sample()

    def _finish_due(self) -> None:
        # Collect all before the first one returns its grant: the engine's answer takes effect at later boundaries only.
        due = [
            (job.number, job.target_count)
            for job in self._running.values()
            if job.held_grant().iteration_count >= job.target_count
        ]
        for number, count in sorted(due):
            self._finish(self._running[number], count)

    def _finish(self, job: GatedJob, count: int) -> None:
        """The grant ends at this boundary, after `count` iterations."""
        now_ns, grant = self._clock.now_ns, job.held_grant()
        del self._running[job.number]
        if self._on_turn is not None:
            self._on_turn(Turn(job.number, grant.lane, job.granted_ns, now_ns))
        job.grant, grant.iteration_count = None, count
        job.done_count += count
        job.pending_count -= count
        self._answer_requests(job, count)
        job.is_waiting = job.pending_count > 0
        successor = None if grant.successor is None else self._jobs.get(grant.successor[0])
        hands_over = successor is not None and successor.is_waiting and (grant.revoked_ns or 0) < now_ns
        returned = self._node.return_grant(SessionId(job.number), wants_next=job.is_waiting, hands_over=hands_over)
        if hands_over and successor is not None:
            self._run(successor)
        if job.done_count == job.times.job.iteration_count:
            job.times.end_ns = now_ns
            self._node.due.append(returned)
            self._handle(ev.SessionLeft(SessionId(job.number)))
        else:
            self._handle(returned)

    def _answer_requests(self, job: GatedJob, count: int) -> None:
        iteration_ns = job.times.job.iteration_ns
        if job.times.job.request_offsets_ns is not None:
            for index in range(count):
                # The last of `count` iterations ends now, each of the others one iteration earlier.
                ended_ns = self._clock.now_ns - (count - 1 - index) * iteration_ns
                job.times.request_wait_ns += max(0, ended_ns - job.requested_ns.popleft() - iteration_ns)
