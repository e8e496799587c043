"""Turns what happens into records: who had which device for how long, what was measured, what went wrong.

Fed by the dispatcher with every event and its commands, in order. Sums are the accounting meter's; here is only the
translation. After a restart the books begin a new incarnation and join the sessions that are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

from accounting.meter import Activity, DeviceMeter, MeteredDevice
from accounting.records import (
    DeviceRecord,
    IncarnationRecord,
    JobKey,
    JobRecord,
    MeasurementRecord,
    NodeEventRecord,
    Record,
    SessionRecord,
)
from nodedaemon.core import commands, events
from nodedaemon.core.commands import Command
from nodedaemon.core.events import Event
from nodedaemon.core.types import DeviceId, LaneId, SessionId
from nodedaemon.drivers.device import Device
from nodedaemon.service.journal.state import JobFacts, SessionFacts, ShellState
from nodedaemon.service.sessions.roster import LiveSession
from nodedaemon.service.usage.lane_spans import LaneSpans
from nodedaemon.wire.messages import ProfileReport

EventKind = Literal["overrun", "hung", "ended_by_salus", "ungated", "xid", "device_lost", "device_recovered"]
#: Bytes above which a figure is garbage; a record must fit a signed 64-bit column.
BYTES_MAX = 1 << 50


class Books:
    def __init__(
        self,
        state: ShellState,
        devices: Mapping[DeviceId, Device],
        *,
        cluster: str,
        node: str,
        incarnation: str,
        boot: str,
        version: str,
        record: Callable[[Record], None],
        clock: Callable[[], int],
        utc_ns: Callable[[], int],
    ) -> None:
        self._state = state
        self._devices = devices
        self._cluster = cluster
        self._node = node
        self._incarnation = incarnation
        self._boot = boot
        self._version = version
        self._record = record
        self._clock = clock
        self._utc_ns = utc_ns
        self._meters: dict[DeviceId, DeviceMeter] = {}
        self._spans = LaneSpans(node, incarnation, record, utc_ns)
        self._introduced: set[str] = set()
        self._joined: dict[SessionId, DeviceId] = {}
        #: P, E and their live parts of each session, as last measured.
        self._sizes: dict[SessionId, tuple[int, int, int, int]] = {}
        self._sequence = 0
        self._started = (utc_ns(), clock())
        self.event_counts: dict[str, int] = {}

    def start(self) -> None:
        self._introduce(self._cluster)
        now_ns, utc_ns = self._clock(), self._utc_ns()
        for device in self._devices.values():
            self._meters[device.uuid] = DeviceMeter(
                MeteredDevice(self._cluster, self._node, device.uuid, self._incarnation, device.usable_bytes),
                now_utc_ns=utc_ns,
                now_mono_ns=now_ns,
            )
        for lane in self._state.lanes.values():
            self._spans.note_size(lane.lane, lane.size_bytes)
            if lane.device in self._meters and lane.size_bytes:
                self._meters[lane.device].set_lane(lane.lane, lane.size_bytes, now_ns)
        for facts in list(self._state.sessions.values()):
            if facts.is_admitted and not facts.is_leaving:
                self._join(facts, now_ns)
                self._change(facts, _activity(facts), now_ns)
                if facts.lane is not None:
                    self._bind(facts.session, facts.lane, now_ns)

    @property
    def _local_cluster(self) -> str:
        return f"local@{self._node}"

    def _introduce(self, cluster: str) -> None:
        """Make this daemon and its devices known to a cluster before anything is recorded for it.

        Jobs without Slurm have a cluster of their own; a node where nobody starts any is counted once.
        """
        if cluster in self._introduced:
            return
        self._introduced.add(cluster)
        self._record_incarnation(None)
        for device in self._devices.values():
            self._record(
                DeviceRecord(
                    cluster=cluster,
                    node=self._node,
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
                    node=self._node,
                    incarnation=self._incarnation,
                    boot_id=self._boot,
                    version=self._version,
                    started_utc_ns=self._started[0],
                    started_mono_ns=self._started[1],
                    stopped_utc_ns=stopped_utc_ns,
                )
            )

    def close_interval(self) -> None:
        """Write what each job had since the last time."""
        self._spans.cut(self._clock())
        for meter in self._meters.values():
            for record in meter.close(self._utc_ns(), self._clock()):
                self._record(record)

    def stop(self) -> None:
        self.close_interval()
        self._record_incarnation(self._utc_ns())

    # Jobs and what they taught

    def job_key(self, job: JobFacts) -> JobKey:
        cluster = self._local_cluster if job.is_local else self._cluster
        self._introduce(cluster)
        return JobKey(cluster=cluster, job_id=job.number, restart_count=job.restart_count, sluid=job.sluid)

    def on_job(self, job: JobFacts) -> None:
        """A job is known, or over."""
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

    def measured(self, live: LiveSession, facts: SessionFacts, profile: ProfileReport, *, is_alone: bool) -> None:
        """Record running maxima for the signature; never below what the daemon reads itself.

        A profile belongs to a job: where several sessions of it live on the device, their sums are recorded.
        """
        job = self._state.jobs.get(facts.job)
        if job is None or not job.signature:
            return
        ephemeral_bytes = min(profile.ephemeral_bytes, BYTES_MAX)
        # What an ungated process holds includes what would be in a lane.
        own_bytes = live.own_bytes_max - (0 if facts.is_gated else ephemeral_bytes)
        self._sizes[facts.session] = (
            max(0, own_bytes, min(profile.persistent_bytes, BYTES_MAX)),
            ephemeral_bytes,
            min(profile.live_persistent_bytes, BYTES_MAX),
            min(profile.live_ephemeral_bytes, BYTES_MAX),
        )
        sums = self._job_sizes(facts)
        model_hash, input_hash = _hash_text(profile.model_hash), _hash_text(profile.input_hash)
        self._record(
            MeasurementRecord(
                job=self.job_key(job),
                user=job.user or str(job.uid),
                signature=job.signature,
                device_model=self._devices[facts.device].model,
                measured_utc_ns=self._utc_ns(),
                persistent_bytes=sums[0],
                ephemeral_bytes=sums[1],
                live_persistent_bytes=sums[2],
                live_ephemeral_bytes=sums[3],
                solo_iteration_ns=min(profile.iteration_ns, BYTES_MAX) if is_alone and profile.iteration_ns else None,
                iteration_count=min(profile.iteration_count, BYTES_MAX),
                boundary_rule=profile.rule,
                model_hash=model_hash,
                input_hash=input_hash,
                stale_reason=_stale_reason(job, model_hash, input_hash),
            )
        )

    def _job_sizes(self, facts: SessionFacts) -> list[int]:
        """What the sessions of the job that live on this device hold together; turns do not apply between them."""
        mates = [one.session for one in self._state.live_sessions(facts.job) if one.device == facts.device]
        known = [self._sizes[one] for one in {*mates, facts.session} if one in self._sizes]
        return [min(sum(column), BYTES_MAX) for column in zip(*known, strict=True)]

    def report(self, kind: str, facts: SessionFacts | None, detail: str, device: DeviceId | None = None) -> None:
        """Something happened to a session or a device."""
        self.event_counts[kind] = self.event_counts.get(kind, 0) + 1
        self._sequence += 1
        job = self._state.jobs.get(facts.job) if facts is not None else None
        place = facts.device if facts is not None else device
        self._record(
            NodeEventRecord(
                cluster=self._local_cluster if job is not None and job.is_local else self._cluster,
                node=self._node,
                incarnation=self._incarnation,
                sequence=self._sequence,
                kind=cast(Any, kind),
                happened_utc_ns=self._utc_ns(),
                happened_mono_ns=self._clock(),
                device=place or "",
                job=self.job_key(job) if job is not None else None,
                detail=detail[:1000],
            )
        )

    # Events

    def watch(self, event: Event, made: list[Command], now_ns: int) -> None:
        match event:
            case events.GrantWanted():
                self._change_id(event.session, Activity.WAITING, now_ns)
            case events.GrantReturned():
                self._on_return(event, now_ns)
            case events.SessionStopped():
                self._change_id(event.session, Activity.SUSPENDED, now_ns)
            case events.SessionContinued():
                facts = self._state.sessions[event.session]
                self._change(facts, _activity(facts), now_ns)
            case events.LaneReleased() | events.LaneFailed():
                self._set_lane(event.lane, 0, now_ns)
            case events.SessionLeft():
                self._sizes.pop(event.session, None)
                self._count_held(event, now_ns)
                self._leave(event.session, now_ns)
            case events.DeviceLost():
                self.report("device_lost", None, event.reason, event.device)
            case events.DeviceRecovered():
                self.report("device_recovered", None, "", event.device)
            case _:
                pass
        for command in made:
            self._watch_command(command, now_ns)

    def _watch_command(self, command: Command, now_ns: int) -> None:
        match command:
            case commands.AdmitSession():
                facts = self._state.sessions[command.session]
                self._join(facts, now_ns)
                self._change(facts, _activity(facts), now_ns)
            case commands.Grant():
                self._change_id(command.session, Activity.RUNNING, now_ns)
            case commands.BindSession():
                self._bind(command.session, command.lane, now_ns)
            case commands.OpenLane():
                self._spans.note_size(command.lane, command.bytes)
                self._meters[command.device].set_lane(command.lane, command.bytes, now_ns)
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

    def _on_return(self, event: events.GrantReturned, now_ns: int) -> None:
        device = self._joined.get(event.session)
        if device is None:
            return
        activity = Activity.WAITING if event.wants_next else Activity.OUTSIDE
        facts = self._state.sessions.get(event.session)
        # A late return changed nothing: the session still runs under another epoch.
        if facts is not None and facts.grant_epoch is not None:
            return
        self._meters[device].change(event.session, activity, now_ns, iteration_count=event.iteration_count)
        self._spans.count(event.session, event.iteration_count)
        if event.handed_over is not None:
            self._meters[device].hand_over(event.session)

    def _count_held(self, event: events.SessionLeft, now_ns: int) -> None:
        """What ran under a grant that its holder took along: nobody has returned it."""
        device = self._joined.get(event.session)
        if device is not None and event.iteration_count:
            self._meters[device].change(event.session, Activity.OUTSIDE, now_ns, iteration_count=event.iteration_count)
            self._spans.count(event.session, event.iteration_count)

    def _set_lane(self, lane: int, size_bytes: int, now_ns: int) -> None:
        known = self._state.lanes.get(cast(Any, lane))
        if known is not None:
            self._meters[known.device].set_lane(lane, size_bytes, now_ns)

    def _change_id(self, session: SessionId, activity: Activity, now_ns: int) -> None:
        device = self._joined.get(session)
        if device is not None:
            self._meters[device].change(session, activity, now_ns)

    def _change(self, facts: SessionFacts, activity: Activity, now_ns: int) -> None:
        self._change_id(facts.session, activity, now_ns)

    def _join(self, facts: SessionFacts, now_ns: int) -> None:
        job = self._state.jobs.get(facts.job)
        if job is None or facts.session in self._joined:
            return
        meter = self._meters[facts.device]
        charge = max(1, facts.persistent_bytes >> 20)
        meter.join(facts.session, self.job_key(job), now_ns, charge=charge, weight=job.weight)
        meter.set_memory(facts.session, facts.persistent_bytes, facts.ephemeral_bytes, now_ns)
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
                node=self._node,
                device=facts.device,
                session=facts.session,
                incarnation=self._incarnation,
                start_utc_ns=facts.start_utc_ns,
                start_mono_ns=facts.start_mono_ns,
                end_utc_ns=self._utc_ns() if is_over else None,
                end_mono_ns=self._clock() if is_over else None,
                is_gated=facts.is_gated,
                end_reason=facts.end_reason[:128] if is_over else "",
                iteration_count=facts.iteration_count,
                handover_count=facts.handover_count,
                persistent_bytes_max=facts.persistent_bytes,
                ephemeral_bytes_max=facts.ephemeral_bytes,
            )
        )


def _activity(facts: SessionFacts) -> Activity:
    if facts.is_stopped:
        return Activity.SUSPENDED
    if facts.grant_epoch is not None or (not facts.is_gated and facts.process.pid):
        return Activity.RUNNING
    return Activity.WAITING if facts.is_waiting else Activity.OUTSIDE


def _hash_text(number: int) -> str:
    return f"{number:016x}" if number else ""


def _stale_reason(job: JobFacts, model_hash: str, input_hash: str) -> str:
    if job.profile_model_hash and model_hash and job.profile_model_hash != model_hash:
        return "the model's structure differs from the profile's"
    if job.profile_input_hash and input_hash and job.profile_input_hash != input_hash:
        return "the input's shapes differ from the profile's"
    return ""
