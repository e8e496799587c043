"""Turns events into usage records: which job used which device for how long, what was measured, what went wrong.

The dispatcher shows it every event with its commands, in order. The accounting meter keeps the sums; this module only
translates. After a restart, recording starts a new incarnation and continues with the sessions that are present.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from accounting.meter import Activity, DeviceMeter, MeteredDevice
from accounting.records import (
    DeviceRecord,
    IncarnationRecord,
    JobKey,
    JobRecord,
    MeasurementRecord,
    NodeEventRecord,
    SessionRecord,
)
from nodedaemon.core import commands, events
from nodedaemon.core.commands import Command
from nodedaemon.core.events import Event
from nodedaemon.core.types import DeviceId, LaneId, SessionId
from nodedaemon.drivers.device import DeviceDriver
from nodedaemon.service.journal.state import JobFacts, SessionFacts, ShellState
from nodedaemon.service.node import NodeIdentity
from nodedaemon.service.sessions.bounds import bounded_profile
from nodedaemon.service.sessions.roster import LiveSession
from nodedaemon.service.usage.lane_spans import LaneSpans
from nodedaemon.service.usage.ledger import Ledger
from nodedaemon.wire.logs import log
from nodedaemon.wire.messages import ProfileReport
from nodedaemon.wire.rate import KindBudget

#: A larger value cannot be right, and a record must fit a signed 64-bit column.
BYTES_MAX = 1 << 50
#: Time between two records of one session's profile; the last one is recorded when the session ends.
PROFILE_INTERVAL_NS = 10_000_000_000
#: Reports of one kind that are recorded per minute about the sessions of one user. All are counted.
REPORTS_MAX = 100


class UsageRecorder:
    """`event_counts` counts the reports by kind."""

    def __init__(
        self, node: NodeIdentity, state: ShellState, devices: Mapping[DeviceId, DeviceDriver], ledger: Ledger
    ) -> None:
        self._node = node
        self._state = state
        self._devices = devices
        self._ledger = ledger
        self._clock, self._utc_ns = node.clock.monotonic_ns, node.clock.utc_ns
        self._record = ledger.record
        self._meters: dict[DeviceId, DeviceMeter] = {}
        self._spans = LaneSpans(node, ledger.record)
        self._introduced: set[str] = set()
        self._joined: dict[SessionId, DeviceId] = {}
        #: P, E and their live parts of each session, as last measured.
        self._sizes: dict[SessionId, tuple[int, int, int, int]] = {}
        self._sequence = 0
        self._started = (self._utc_ns(), self._clock())
        self.event_counts: dict[str, int] = {}
        self._budget = KindBudget(REPORTS_MAX)

    def start(self) -> None:
        self._record_run(self._node.cluster)
        now_ns, utc_ns = self._clock(), self._utc_ns()
        for device in self._devices.values():
            self._meters[device.uuid] = DeviceMeter(
                MeteredDevice(
                    self._node.cluster, self._node.name, device.uuid, self._node.incarnation, device.usable_bytes
                ),
                now_utc_ns=utc_ns,
                now_mono_ns=now_ns,
            )
        for device_state in self._state.engine.device_views.values():
            for lane in device_state.open_lanes.values():
                self._spans.note_size(lane.id, lane.held_bytes)
                if lane.device in self._meters:
                    self._meters[lane.device].set_lane(lane.id, lane.held_bytes, now_ns)
        for facts in list(self._state.sessions.values()):
            if facts.view.is_admitted and not facts.view.is_leaving:
                self._join(facts, now_ns)
                self._change(facts.session, _activity(facts), now_ns)
                if facts.view.lane is not None:
                    self._bind(facts.session, facts.view.lane.id, now_ns)

    def _record_run(self, cluster: str) -> None:
        """Record this run and its devices for a cluster before anything else is recorded for it.

        Jobs without Slurm belong to a cluster of their own, which a node joins with its first such job.
        """
        if cluster in self._introduced:
            return
        self._introduced.add(cluster)
        self._record_incarnation(None)
        for device in self._devices.values():
            self._record(
                DeviceRecord(
                    cluster=cluster,
                    node=self._node.name,
                    device=device.uuid,
                    index=device.index,
                    model=device.model,
                    capacity_bytes=device.usable_bytes,
                    seen_utc_ns=self._utc_ns(),
                )
            )

    def _record_incarnation(self, stopped_utc_ns: int | None) -> None:
        for cluster in sorted(self._introduced):
            self._record(
                IncarnationRecord(
                    cluster=cluster,
                    node=self._node.name,
                    incarnation=self._node.incarnation,
                    boot_id=self._node.boot_id,
                    version=self._node.version,
                    started_utc_ns=self._started[0],
                    started_mono_ns=self._started[1],
                    stopped_utc_ns=stopped_utc_ns,
                )
            )

    def close_interval(self) -> None:
        """Record what each job used since the last interval."""
        self._budget.end_interval()
        self._spans.cut(self._clock())
        for meter in self._meters.values():
            for record in meter.close(self._utc_ns(), self._clock()):
                self._record(record)

    def stop(self) -> None:
        self.close_interval()
        self._record_incarnation(self._utc_ns())

    # Jobs and their profiles

    def job_key(self, job: JobFacts) -> JobKey:
        cluster = self._node.local_cluster if job.is_local else self._node.cluster
        self._record_run(cluster)
        return JobKey(cluster=cluster, job_id=job.number, restart_count=job.restart_count, sluid=job.sluid)

    def on_job(self, job: JobFacts) -> None:
        """Record that a job has started or ended."""
        self._record(
            JobRecord(
                key=self.job_key(job),
                user=job.user,
                uid=job.uid,
                account=job.account,
                partition=job.partition,
                qos=job.qos,
                name=job.name,
                signature=job.signature,
                admission=job.admission,
                device_count=max(1, len(job.devices)),
                state="COMPLETED" if job.is_ended else "RUNNING",
                start_utc_ns=job.start_utc_ns,
                start_mono_ns=job.start_mono_ns,
                end_utc_ns=self._utc_ns() if job.is_ended else None,
                end_mono_ns=self._clock() if job.is_ended else None,
            )
        )

    def on_profile(self, live: LiveSession, facts: SessionFacts, profile: ProfileReport) -> None:
        """A session reports its profile: record it, or keep it for later if one was recorded recently."""
        live.profile = profile
        now_ns = self._clock()
        if now_ns - live.recorded_ns > PROFILE_INTERVAL_NS:
            live.recorded_ns = now_ns
            self.record_profile(live, facts)

    def record_profile(self, live: LiveSession, facts: SessionFacts) -> None:
        """Record the pending profile, if any. For a short job, only the one at its end is complete.

        A session that used more than its charge is recorded even if it reported nothing, so that its owner's next job
        is charged for what this one had.
        """
        profile = live.profile or self._unreported(live, facts)
        if profile is not None:
            self._record_measurement(live, facts, profile)
            live.profile = None
            self._ledger.flush_soon()

    def _unreported(self, live: LiveSession, facts: SessionFacts) -> ProfileReport | None:
        """What the session had beyond its charge, from readings and allowed overruns; None if it reported as much."""
        charged_bytes = facts.view.charged_persistent_bytes, facts.view.charged_ephemeral_bytes
        if not any(charged_bytes):
            return None  # a further session of its job: the sizes of the job are known from the first one
        known = self._sizes.get(facts.session, (0, 0, 0, 0))
        own_bytes = live.own_bytes_max - (0 if facts.view.is_gated else charged_bytes[1])
        allowed_bytes = _allowed_sizes(facts)
        persistent_bytes = max(allowed_bytes[0], own_bytes if own_bytes > charged_bytes[0] else 0)
        if persistent_bytes <= known[0] and allowed_bytes[1] <= known[1]:
            return None
        ephemeral_bytes = max(facts.view.ephemeral_bytes, charged_bytes[1], known[1])
        return ProfileReport(max(persistent_bytes, known[0]), ephemeral_bytes, *known[2:])

    def _record_measurement(self, live: LiveSession, facts: SessionFacts, profile: ProfileReport) -> None:
        """Record running maxima for the signature, never below the daemon's own readings and the overruns it allowed.

        A profile belongs to a job: if several of its sessions use the device, their sums are recorded.
        """
        job = self._state.jobs.get(facts.job)
        if job is None or not job.signature:
            return
        device = self._devices[facts.device]
        profile = bounded_profile(profile, facts, device.usable_bytes, self._clock())
        allowed_bytes = _allowed_sizes(facts)
        ephemeral_bytes = max(allowed_bytes[1], profile.ephemeral_bytes)
        # The memory of an ungated process includes what would otherwise be in a lane.
        own_bytes = live.own_bytes_max - (0 if facts.view.is_gated else ephemeral_bytes)
        self._sizes[facts.session] = (
            max(0, own_bytes, allowed_bytes[0], profile.persistent_bytes),
            ephemeral_bytes,
            profile.live_persistent_bytes,
            profile.live_ephemeral_bytes,
        )
        sums = self._job_sizes(facts)
        is_alone = sum(1 for session in self._state.sessions.values() if session.device == facts.device) == 1
        model_hash, input_hash = _hash_text(profile.model_hash), _hash_text(profile.input_hash)
        self._record(
            MeasurementRecord(
                job=self.job_key(job),
                user=job.user or str(job.uid),
                signature=job.signature,
                device_model=device.model,
                measured_utc_ns=self._utc_ns(),
                persistent_bytes=sums[0],
                ephemeral_bytes=sums[1],
                live_persistent_bytes=sums[2],
                live_ephemeral_bytes=sums[3],
                solo_iteration_ns=profile.iteration_ns if is_alone and profile.iteration_ns else None,
                iteration_count=profile.iteration_count,
                boundary_rule=profile.rule,
                model_hash=model_hash,
                input_hash=input_hash,
                stale_reason=_stale_reason(job, model_hash, input_hash),
            )
        )

    def _job_sizes(self, facts: SessionFacts) -> list[int]:
        """Sums over the job's live sessions on this device: they hold their memory at the same time."""
        present = [one.session for one in self._state.live_sessions(facts.job) if one.device == facts.device]
        sizes = [self._sizes[one] for one in {*present, facts.session} if one in self._sizes]
        return [min(sum(column), BYTES_MAX) for column in zip(*sizes, strict=True)]

    # Reports

    def report(self, kind: str, facts: SessionFacts, detail: str) -> None:
        """Log and record something that happened to a session. Sessions cause it, so records are limited."""
        log.warning(kind, job=facts.job, session=facts.session, device=facts.device, uid=facts.uid, detail=detail)
        if self._budget.allows(kind, facts.uid):
            self._record_event(kind, detail, facts.device, self._state.jobs.get(facts.job))
        else:
            self._count_event(kind)

    def report_device(self, kind: str, device: DeviceId, detail: str) -> None:
        """Record something that happened to a device."""
        self._record_event(kind, detail, device, None)

    def _count_event(self, kind: str) -> None:
        self.event_counts[kind] = self.event_counts.get(kind, 0) + 1

    def report_clock_step(self, step_ns: int) -> None:
        """The system's clock was set: record it, and start a new interval on the new time."""
        self._record_event("clock_stepped", f"by {step_ns} ns", "", None)
        self.close_interval()

    def _record_event(self, kind: str, detail: str, device: str, job: JobFacts | None) -> None:
        self._count_event(kind)
        self._sequence += 1
        self._record(
            NodeEventRecord(
                cluster=self._node.local_cluster if job is not None and job.is_local else self._node.cluster,
                node=self._node.name,
                incarnation=self._node.incarnation,
                sequence=self._sequence,
                kind=cast(Any, kind),
                happened_utc_ns=self._utc_ns(),
                happened_mono_ns=self._clock(),
                device=device,
                job=self.job_key(job) if job is not None else None,
                detail=detail[:1000],
            )
        )

    # Events

    def watch(self, event: Event, made: list[Command], now_ns: int) -> None:
        match event:
            case events.GrantWanted():
                # Not simply WAITING: the engine ignores a request of a session that runs.
                self._change(event.session, _activity(self._state.sessions[event.session]), now_ns)
            case events.GrantReturned():
                self._on_return(event, made, now_ns)
            case events.SessionStopped():
                self._change(event.session, Activity.SUSPENDED, now_ns)
            case events.SessionContinued():
                facts = self._state.sessions[event.session]
                self._change(facts.session, _activity(facts), now_ns)
            case events.LaneReleased() | events.LaneFailed():
                self._set_lane(event.lane, 0, now_ns)
            case events.SessionLeft():
                self._sizes.pop(event.session, None)
                self._count_held(event, now_ns)
                self._leave(event.session, now_ns)
            case events.DeviceLost():
                self.report_device("device_lost", event.device, event.reason)
            case events.DeviceRecovered():
                self.report_device("device_recovered", event.device, "")
            case _:
                pass
        for command in made:
            self._watch_command(command, now_ns)

    def _watch_command(self, command: Command, now_ns: int) -> None:
        match command:
            case commands.AdmitSession():
                facts = self._state.sessions[command.session]
                self._join(facts, now_ns)
                self._change(facts.session, _activity(facts), now_ns)
            case commands.Grant():
                self._change(command.session, Activity.RUNNING, now_ns)
            case commands.BindSession():
                self._bind(command.session, command.lane, now_ns)
            case commands.OpenLane():
                self._spans.note_size(command.lane, command.bytes)
                self._meters[command.device].set_lane(command.lane, command.bytes, now_ns)
            case commands.CloseLane():
                # The engine has forgotten the lane, and with it the device.
                for meter in self._meters.values():
                    meter.set_lane(command.lane, 0, now_ns)
                self._spans.forget(command.lane)
            case _:
                pass

    def _bind(self, session: SessionId, lane: LaneId, now_ns: int) -> None:
        device = self._joined.get(session)
        facts = self._state.sessions.get(session)
        job = self._state.jobs.get(facts.job) if facts is not None else None
        if device is None or job is None:
            return
        self._meters[device].bind(session, lane, now_ns)
        self._spans.enter(session, self.job_key(job), device, lane, now_ns)

    def _on_return(self, event: events.GrantReturned, made: list[Command], now_ns: int) -> None:
        device = self._joined.get(event.session)
        if device is None:
            return
        activity = Activity.WAITING if event.wants_next else Activity.OUTSIDE
        facts = self._state.sessions.get(event.session)
        if facts is not None and not facts.has_returned(made):
            return
        self._meters[device].change(event.session, activity, now_ns, iteration_count=event.iteration_count)
        self._spans.count(event.session, event.iteration_count)
        if event.handed_over is not None:
            self._meters[device].hand_over(event.session)
            # The engine sends no `Grant` for the successor, because it runs already.
            successor = self._state.engine.holder(device, event.handed_over)
            if successor is not None:
                self._change(successor.id, _activity(self._state.sessions[successor.id]), now_ns)

    def _count_held(self, event: events.SessionLeft, now_ns: int) -> None:
        """Count the iterations of a holder that left without returning its grant."""
        device = self._joined.get(event.session)
        if device is not None and event.iteration_count:
            self._meters[device].change(event.session, Activity.OUTSIDE, now_ns, iteration_count=event.iteration_count)
            self._spans.count(event.session, event.iteration_count)

    def _set_lane(self, lane: int, size_bytes: int, now_ns: int) -> None:
        view = self._state.engine.lane(cast(Any, lane))
        if view is not None:
            self._meters[view.device].set_lane(lane, size_bytes, now_ns)

    def _change(self, session: SessionId, activity: Activity, now_ns: int) -> None:
        device = self._joined.get(session)
        if device is not None:
            self._meters[device].change(session, activity, now_ns)

    def _join(self, facts: SessionFacts, now_ns: int) -> None:
        job = self._state.jobs.get(facts.job)
        if job is None or facts.session in self._joined:
            return
        meter = self._meters[facts.device]
        charge = max(1, facts.view.persistent_bytes >> 20)
        meter.join(facts.session, self.job_key(job), now_ns, charge=charge, weight=job.weight)
        meter.set_memory(facts.session, facts.view.persistent_bytes, facts.view.ephemeral_bytes, now_ns)
        self._joined[facts.session] = facts.device
        self._record_session(facts, job, is_over=False)

    def _leave(self, session: SessionId, now_ns: int) -> None:
        device = self._joined.pop(session, None)
        if device is None:
            return
        self._meters[device].leave(session, now_ns)
        self._spans.leave(session, now_ns)
        facts = self._state.sessions.get(session)
        job = self._state.jobs.get(facts.job) if facts is not None else None
        if facts is not None and job is not None:
            self._record_session(facts, job, is_over=True)

    def _record_session(self, facts: SessionFacts, job: JobFacts, *, is_over: bool) -> None:
        self._record(
            SessionRecord(
                job=self.job_key(job),
                node=self._node.name,
                device=facts.device,
                session=facts.session,
                incarnation=self._node.incarnation,
                start_utc_ns=facts.start_utc_ns,
                start_mono_ns=facts.start_mono_ns,
                end_utc_ns=self._utc_ns() if is_over else None,
                end_mono_ns=self._clock() if is_over else None,
                is_gated=facts.view.is_gated,
                end_reason=facts.end_reason[:128] if is_over else "",
                iteration_count=facts.view.iteration_count,
                handover_count=facts.view.handover_count,
                persistent_bytes_max=facts.view.persistent_bytes,
                ephemeral_bytes_max=facts.view.ephemeral_bytes,
            )
        )


def _activity(facts: SessionFacts) -> Activity:
    if facts.view.is_stopped:
        return Activity.SUSPENDED
    if facts.view.epoch is not None or (not facts.view.is_gated and facts.process.pid):
        return Activity.RUNNING
    return Activity.WAITING if facts.view.is_waiting else Activity.OUTSIDE


def _allowed_sizes(facts: SessionFacts) -> tuple[int, int]:
    """The persistent and the ephemeral bytes of an overrun that the engine allowed; 0 for a size within the charge.

    Further sessions of a job have no charge of their own: their memory is known from readings.
    """
    view = facts.view
    persistent_bytes, ephemeral_bytes = view.charged_persistent_bytes, view.charged_ephemeral_bytes
    if not persistent_bytes and not ephemeral_bytes:
        return 0, 0
    # A session without a gate has turned its ephemeral bytes into persistent ones.
    persistent_bytes += max(0, ephemeral_bytes - view.ephemeral_bytes)
    return (
        view.persistent_bytes if view.persistent_bytes > persistent_bytes else 0,
        view.ephemeral_bytes if view.ephemeral_bytes > ephemeral_bytes else 0,
    )


def _hash_text(number: int) -> str:
    return f"{number:016x}" if number else ""


def _stale_reason(job: JobFacts, model_hash: str, input_hash: str) -> str:
    if job.profile_model_hash and model_hash and job.profile_model_hash != model_hash:
        return "the model's structure differs from the profile's"
    if job.profile_input_hash and input_hash and job.profile_input_hash != input_hash:
        return "the input's shapes differ from the profile's"
    return ""
