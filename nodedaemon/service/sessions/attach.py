"""Opens sessions for jobs, attaches processes to them, and welcomes them once the engine has admitted them.

A session opened by the Prolog has no process yet; the first process of its job on that device takes it. A further
process beside a live one makes the job one of several sessions: it runs by its peak, ungated, and is told so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from nodedaemon.config import Settings
from nodedaemon.config.choices import StrayAccess
from nodedaemon.core import events
from nodedaemon.core.errors import OperatingError, PeerError
from nodedaemon.core.types import DeviceId, SessionId
from nodedaemon.drivers.device import Device
from nodedaemon.drivers.process import Process
from nodedaemon.service.journal.dispatcher import Dispatcher
from nodedaemon.service.journal.state import CounterNote, JobFacts, JobNote, ProcessFacts, SessionFacts, SessionNote
from nodedaemon.service.sessions.gate_memory import GatePage
from nodedaemon.service.sessions.roster import LiveSession, Roster, Sender
from nodedaemon.wire.messages import Notice, Welcome, WelcomeFlag

UNGATED_TEXT = "several sessions of this job use the device: it runs by its peak, without lanes"


class SessionDesk:
    def __init__(
        self,
        dispatcher: Dispatcher,
        roster: Roster,
        devices: Mapping[DeviceId, Device],
        *,
        settings: Callable[[DeviceId], Settings],
        loop: asyncio.AbstractEventLoop,
        utc_ns: Callable[[], int],
        on_death: Callable[[SessionId], None],
        report: Callable[[str, SessionFacts, str], None],
        log: Any,
    ) -> None:
        self._dispatcher = dispatcher
        self._roster = roster
        self._devices = devices
        self._settings = settings
        self._loop = loop
        self._utc_ns = utc_ns
        self._on_death = on_death
        self._report = report
        self._log = log

    def hold(self, job: JobFacts, device: DeviceId, process: Process, peak_bytes: int) -> SessionFacts:
        """Count a process that runs without us: no page, no connection; its end gives its bytes back.

        Beside other sessions of its job it comes in as a further one, charged by what it is seen to hold.
        """
        state, who = self._dispatcher.state, ProcessFacts(process.pid, process.start_ticks)
        if any(one.process == who for one in state.sessions.values()):
            raise PeerError(f"session not counted: pid {process.pid}: it is counted already")
        mates = [one for one in state.live_sessions(job.job) if one.device == device]
        facts = next((one for one in mates if one.process.pid == 0), None)
        if facts is None and not mates:
            peak_bytes = min(peak_bytes, self._devices[device].usable_bytes)
            job.kind, job.persistent_bytes, job.ephemeral_bytes = "shared", peak_bytes, 0
            self._dispatcher.note(JobNote(job))
        facts = facts or self.open(job, device, is_extra=bool(mates))
        live = self._roster.add(facts.session)
        live.process = process
        self._dispatcher.note(replace(facts.note(), process=who))
        self.watch(live)
        return facts

    def open(self, job: JobFacts, device: DeviceId, *, is_extra: bool = False) -> SessionFacts:
        """Have a session arrive. `is_extra`: beside a live one of the same job, inside what that job holds."""
        state = self._dispatcher.state
        session = SessionId(state.session_next)
        self._dispatcher.note(CounterNote(session + 1, state.job_next))
        start_mono_ns = self._dispatcher.clock()
        self._dispatcher.note(SessionNote(session, job.job, device, job.uid, self._utc_ns(), start_mono_ns))
        self._roster.add(session)
        persistent_bytes, ephemeral_bytes = self._sizes(job, device)
        if is_extra:
            persistent_bytes = ephemeral_bytes = 0
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
            )
        )
        return state.sessions[session]

    def _sizes(self, job: JobFacts, device: DeviceId) -> tuple[int, int]:
        if job.kind != "shared":
            return self._devices[device].usable_bytes, 0
        if job.ephemeral_bytes == 0:
            return job.persistent_bytes, 0
        return job.persistent_bytes, job.ephemeral_bytes

    def take(self, job: JobFacts, device: DeviceId, process: Process) -> SessionFacts:
        """The session that a process of the job gets on a device: one that waits for it, its own, or a further one."""
        mates = [session for session in self._dispatcher.state.live_sessions(job.job) if session.device == device]
        for session in mates:
            if session.process.pid == 0:
                return session
            if session.process == ProcessFacts(process.pid, process.start_ticks):
                raise PeerError(f"session refused: pid {process.pid}: it has a session on this device already")
        if not mates:
            return self.open(job, device)
        for session in mates:
            if session.view.is_gated:
                self._dispatcher.submit(events.SessionUngated(session.session))
                live = self._roster.get(session.session)
                if live is not None and live.connection is not None:
                    live.connection.send(Notice(UNGATED_TEXT))
        facts = self.open(job, device, is_extra=True)
        self._report("ungated", facts, UNGATED_TEXT)
        return facts

    def attach(self, facts: SessionFacts, process: Process, connection: Sender) -> None:
        """Tie a process to a session: pages, slot, pidfd, cores; then welcome it if it is admitted already."""
        live = self._roster.add(facts.session)
        live.process, live.connection = process, connection
        live.page = GatePage.create(facts.session)
        self._roster.take_slot(live, facts.uid, facts.view.domain, facts.device)
        assert live.turn is not None
        who = ProcessFacts(process.pid, process.start_ticks)
        page, turn = live.page.identity, live.turn.identity
        self._dispatcher.note(replace(facts.note(), process=who, page=page, turn=turn, slot=live.slot))
        self.watch(live)
        self.pin(facts, process)
        self.welcome(live, facts)

    def watch(self, live: LiveSession) -> None:
        """Hear of the process's death from now on."""
        assert live.process is not None
        pidfd, session = live.process.pidfd, live.session
        self._loop.add_reader(pidfd, self._on_death, session)
        live.closers.append(lambda: self._unwatch(pidfd))

    def _unwatch(self, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)

    def pin(self, facts: SessionFacts, process: Process) -> None:
        cores = self._devices[facts.device].cores
        try:
            process.pin(cores)
        except OperatingError as error:
            self._log.warning("session not pinned", job=facts.job, session=facts.session, why=str(error))

    def welcome(self, live: LiveSession, facts: SessionFacts) -> None:
        """Answer a hello once admitted; the pages go with it. Does nothing before, without a process, or twice."""
        if live.connection is None or live.page is None or live.turn is None or live.is_welcomed:
            return
        if not facts.view.is_admitted:
            return
        live.is_welcomed = True
        settings = self._settings(facts.device)
        job = self._dispatcher.state.jobs.get(facts.job)
        flags = WelcomeFlag.RELAY
        if settings.lanes.stray_access is StrayAccess.TRAP:
            flags |= WelcomeFlag.TRAP
        if not facts.view.is_gated:
            flags |= WelcomeFlag.UNGATED
        live.connection.send(
            Welcome(
                session=facts.session,
                device_bytes=self._devices[facts.device].usable_bytes,
                persistent_bytes=facts.view.persistent_bytes or self._devices[facts.device].usable_bytes,
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
    """A stored hash as the wire has it; a text of another make is no hash."""
    try:
        return int(text, 16) & 0xFFFFFFFFFFFFFFFF if text else 0
    except ValueError:
        return 0
