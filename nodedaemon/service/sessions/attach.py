"""Opens sessions for jobs, attaches processes to them, and welcomes them once the engine has admitted them.

A session that the Prolog opened has no process yet. The first process of its job on that device attaches to it. If
another process of the job connects while the first one is alive, the sessions of the job on that device run without
lanes, limited by their peak memory. If other jobs need the lane of the first session, that session still takes turns.
Earlier sessions get a notice.
"""

from __future__ import annotations

import functools
import time

from msgspec.structs import replace

from nodedaemon.config.choices import StrayAccess
from nodedaemon.core import events
from nodedaemon.core.errors import OperatingError, PeerError
from nodedaemon.core.types import DeviceId, SessionId
from nodedaemon.drivers.process import Process
from nodedaemon.service.journal.state import CounterNote, JobFacts, JobNote, ProcessFacts, SessionFacts, SessionNote
from nodedaemon.service.sessions.gate_memory import GatePage
from nodedaemon.service.sessions.losses import SessionLosses
from nodedaemon.service.sessions.roster import LiveSession, Sender
from nodedaemon.service.shell import Shell
from nodedaemon.wire.logs import log
from nodedaemon.wire.messages import Hello, HelloFlag, Notice, Welcome, WelcomeFlag

UNGATED_TEXT = "several sessions of this job use the device, so it runs without lanes, limited by its peak memory"

STILL_GATED_TEXT = (
    "several sessions of this job use the device; other jobs need its lane, so its first session still takes turns"
)
#: After this many sessions of a job were ended by Salus, no process of the job may attach any more.
ENDED_SESSIONS_MAX = 3


class SessionAttach:
    def __init__(self, shell: Shell, losses: SessionLosses) -> None:
        self._shell = shell
        self._dispatcher, self._roster = shell.dispatcher, shell.roster
        self._losses = losses

    def open(self, job: JobFacts, device: DeviceId, *, is_extra: bool = False) -> SessionFacts:
        """Open a session. An extra session shares the memory of its job with the job's other sessions."""
        state = self._dispatcher.state
        session = SessionId(state.session_next)
        self._dispatcher.note(CounterNote(session + 1, state.job_next))
        start_mono_ns = self._dispatcher.clock()
        self._dispatcher.note(SessionNote(session, job.job, device, job.uid, time.time_ns(), start_mono_ns))
        self._roster.add(session)
        persistent_bytes, ephemeral_bytes = job.persistent_bytes, job.ephemeral_bytes
        if is_extra:
            persistent_bytes = ephemeral_bytes = 0
        elif job.kind != "shared":
            persistent_bytes, ephemeral_bytes = self._shell.devices[device].usable_bytes, 0
        self._dispatcher.submit(
            events.SessionArrived(
                session,
                device,
                job.job,
                job.domain,
                persistent_bytes,
                ephemeral_bytes,
                job.job_class,
                job.weight,
                job.remaining_ns,
                is_placed=not job.is_local,
            )
        )
        return state.sessions[session]

    def hold(self, job: JobFacts, device: DeviceId, process: Process, peak_bytes: int) -> SessionFacts:
        """Count a process that runs without Salus until it ends: it has no page and no connection.

        If its job has other sessions, it is an extra one, and is charged for the memory that readings show. A job that
        Slurm placed gets what it was charged for. The process may have more, which then counts as an overrun.
        """
        identity = ProcessFacts(process.pid, process.start_ticks)
        if any(session.process == identity for session in self._dispatcher.state.sessions.values()):
            raise PeerError(f"session not counted: pid {process.pid}: it is counted already")
        peers = self._sessions_on(job, device)
        facts = next((session for session in peers if session.process.pid == 0), None)
        peak_bytes = min(peak_bytes, self._shell.devices[device].usable_bytes)
        if not peers and job.is_local:
            job = replace(job, kind="shared", persistent_bytes=peak_bytes, ephemeral_bytes=0)
            self._dispatcher.note(JobNote(job))
        is_extra = facts is None and bool(peers)
        facts = facts or self.open(job, device, is_extra=is_extra)
        live = self._roster.add(facts.session)
        live.process = process
        if facts.view.is_gated:
            self._dispatcher.submit(events.SessionUngated(facts.session, has_own_memory=True))
        if not is_extra:
            self._count_peak(live, facts, peak_bytes)
        self._dispatcher.note(replace(facts.note(), process=identity))
        live.watch_death(self._losses.on_death)
        return facts

    def _count_peak(self, live: LiveSession, facts: SessionFacts, peak_bytes: int) -> None:
        """Count what a process has beyond its charge, now or when the engine admits it."""
        if not facts.view.is_admitted:
            live.on_admitted = functools.partial(self._count_peak, live, facts, peak_bytes)
        elif peak_bytes > facts.view.persistent_bytes:
            self._dispatcher.submit(events.SessionOverran(facts.session, peak_bytes, 0))

    def choose(self, job: JobFacts, process: Process, hello: Hello) -> SessionFacts:
        """The session for a process of the job: one that waits for a process, a first one, or an extra one."""
        attached = [one for one in self._dispatcher.state.sessions.values() if one.uid == job.uid and one.process.pid]
        if len(attached) >= self._shell.configuration.settings.daemon.user_sessions_max:
            raise PeerError(f"session refused: uid {job.uid}: it has as many sessions as UserSessions allows")
        if job.ended_session_count >= ENDED_SESSIONS_MAX:
            raise PeerError(
                f"session refused: job {job.job}: Salus had to end {job.ended_session_count} sessions of it"
            )
        device = self._shell.devices.of_job(job, hello.device)
        facts = self._find(job, device, ProcessFacts(process.pid, process.start_ticks))
        if hello.flags & HelloFlag.UNGATED and facts.view.is_gated:
            self._dispatcher.submit(events.SessionUngated(facts.session, has_own_memory=True))
        # Sizes that the job declares itself (`salus_job.declare`) can only raise those of its admission.
        admitted = facts.view.persistent_bytes, facts.view.ephemeral_bytes
        wanted = max(hello.declared_persistent_bytes, admitted[0]), max(hello.declared_ephemeral_bytes, admitted[1])
        if facts.view.is_admitted and facts.view.is_gated and wanted != admitted:
            self._dispatcher.submit(events.SessionOverran(facts.session, *wanted))
        return facts

    def _find(self, job: JobFacts, device: DeviceId, identity: ProcessFacts) -> SessionFacts:
        peers = self._sessions_on(job, device)
        for session in peers:
            if session.process.pid == 0:
                return session
            if session.process == identity:
                raise PeerError(f"session refused: pid {identity.pid}: it has a session on this device already")
        if not peers:
            return self.open(job, device)
        for session in peers:
            if session.view.is_gated:
                self._dispatcher.submit(events.SessionUngated(session.session))
                live = self._roster.get(session.session)
                if live is not None and live.connection is not None:
                    live.connection.send(Notice(STILL_GATED_TEXT if session.view.is_gated else UNGATED_TEXT))
        facts = self.open(job, device, is_extra=True)
        self._shell.recorder.report("ungated", facts, UNGATED_TEXT)
        return facts

    def _sessions_on(self, job: JobFacts, device: DeviceId) -> list[SessionFacts]:
        return [session for session in self._dispatcher.state.live_sessions(job.job) if session.device == device]

    def attach(self, facts: SessionFacts, process: Process, connection: Sender) -> None:
        """Attach a process to a session: pages, slot and cores. Welcome it as soon as it is admitted."""
        live = self._roster.add(facts.session)
        live.process, live.connection = process, connection
        live.page = GatePage.create(facts.session)
        self._roster.allocate_slot(live, facts)
        assert live.turn is not None
        identity = ProcessFacts(process.pid, process.start_ticks)
        page, turn = live.page.identity, live.turn.identity
        self._dispatcher.note(replace(facts.note(), process=identity, page=page, turn=turn, slot=live.slot))
        try:
            process.pin(self._shell.devices[facts.device].cores)
        except OperatingError as error:
            log.warning("session not pinned", job=facts.job, session=facts.session, why=str(error))
        self.welcome(live, facts)
        live.watch_death(self._losses.on_death)

    def welcome(self, live: LiveSession, facts: SessionFacts) -> None:
        """Answer the HELLO with the pages, now or when the engine admits the session. Never answers twice."""
        if not facts.view.is_admitted:
            live.on_admitted = functools.partial(self.welcome, live, facts)
            return
        if live.connection is None or live.page is None or live.turn is None or live.is_welcomed:
            return
        live.is_welcomed = True
        settings = self._shell.configuration.for_device(facts.device)
        job = self._dispatcher.state.jobs.get(facts.job)
        flags = WelcomeFlag.RELAY
        if settings.lanes.stray_access is StrayAccess.TRAP:
            flags |= WelcomeFlag.TRAP
        if not facts.view.is_gated:
            flags |= WelcomeFlag.UNGATED
        live.connection.send(
            Welcome(
                session=facts.session,
                device_bytes=self._shell.devices[facts.device].usable_bytes,
                persistent_bytes=facts.view.persistent_bytes or self._shell.devices[facts.device].usable_bytes,
                ephemeral_bytes=facts.view.ephemeral_bytes,
                profile_persistent_bytes=job.profile_persistent_bytes if job else 0,
                profile_ephemeral_bytes=job.profile_ephemeral_bytes if job else 0,
                profile_model_hash=_number(job.profile_model_hash) if job else 0,
                profile_input_hash=_number(job.profile_input_hash) if job else 0,
                idle_release_ns=settings.gate.idle_release_ns,
                flags=int(flags),
                slot=live.slot,
                rule=job.boundary_rule if job else "",
            ),
            [live.page.fd, live.turn.fd],
        )


def _number(text: str) -> int:
    """A stored hash as the number that is sent on the wire; 0 for text that is not a hash."""
    try:
        return int(text, 16) & 0xFFFFFFFFFFFFFFFF if text else 0
    except ValueError:
        return 0
