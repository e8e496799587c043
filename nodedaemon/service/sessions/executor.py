"""Carries out the engine's commands on sessions, and ends sessions.

Theory of operation. Every effect on a session begins as a command of the engine, and docs/protocol.md, "salusd and a
session", specifies it. The executor looks the session up, finds its live part (process, pages, connection), and acts. A
command may be carried out again after a restart, so each effect is safe to repeat: pages are written with the same
epoch, and an answer with an old epoch changes nothing. A session that is not connected gets its commands when it
reconnects, from the engine's state (`recovery`).

The engine decides in which of these states a session is:

    arriving    opened by the Prolog or for a HELLO; waits for its memory
    admitted    welcomed as soon as a process has attached (`SessionAttach`)
    granted     runs in its lane (`Handover`)
    leaving     `leave` reported it: its process is gone or holds no lane; its memory may not be free yet
    gone        `finish` reported that its memory is free, and the live part is dropped

Only `leave` submits `SessionLeft` and only `finish` submits `SessionReleased`. The reason for an end is a note, so a
restarted daemon records the same reason.
"""

from __future__ import annotations

from nodedaemon.core import commands, events
from nodedaemon.core.commands import Command
from nodedaemon.core.errors import OperatingError, SalusError
from nodedaemon.core.events import Event
from nodedaemon.core.types import SessionId
from nodedaemon.drivers.process import ProcessState
from nodedaemon.service.devices.lanes import LaneAllocator
from nodedaemon.service.devices.wake_timers import WakeTimers
from nodedaemon.service.journal.state import EndNote, SessionFacts
from nodedaemon.service.sessions.handover import Handover
from nodedaemon.service.sessions.roster import LiveSession
from nodedaemon.service.shell import Shell
from nodedaemon.wire.logs import log
from nodedaemon.wire.messages import Allow, Deny, Notice


class Executor:
    def __init__(self, shell: Shell, lanes: LaneAllocator, handover: Handover) -> None:
        self._shell = shell
        self._dispatcher, self._roster = shell.dispatcher, shell.roster
        self._lanes = lanes
        self._handover = handover
        self._timers = WakeTimers(shell.dispatcher)

    def carry_out(self, command: Command) -> None:
        match command:
            case commands.OpenLane():
                self._lanes.open(command)
            case commands.ReleaseLane():
                self._lanes.release(command.lane)
            case commands.CloseLane():
                self._lanes.close(command.lane)
            case commands.WakeAt():
                self._timers.wake_at(command)
            case _:
                facts = self._dispatcher.state.sessions.get(command.session)
                if facts is not None:
                    self._carry_out_session(command, facts)

    def on_refused(self, event: Event, error: SalusError) -> None:
        log.warning("event refused", kind=type(event).__name__, why=str(error))

    def _carry_out_session(self, command: Command, facts: SessionFacts) -> None:
        live = self._roster.add(facts.session)
        match command:
            case commands.AdmitSession():
                live.admit()
            case commands.Grant():
                self._handover.start(live, facts)
            case commands.LimitGrant():
                if live.page is not None and facts.view.epoch == command.epoch:
                    live.page.limit_further(command.epoch, command.iteration_count)
            case commands.Revoke():
                if facts.view.epoch == command.epoch:
                    self._handover.revoke(live, facts)
            case commands.ReleaseSession():
                self.release(live, facts)
            case commands.EndSession():
                self.end(facts, command.reason)
            case commands.WarnSession():
                self._notify(live, command.reason)
                log.warning("session warned", job=facts.job, session=facts.session, reason=command.reason)
            case commands.AllowOverrun():
                if live.connection is not None:
                    live.connection.send(Allow(command.persistent_bytes, command.ephemeral_bytes, live.overrun_serial))
            case commands.RefuseOverrun():
                self._shell.recorder.report("overrun", facts, command.shortfall.text())
                if live.connection is not None:
                    live.connection.send(Deny(live.overrun_serial, text=command.shortfall.text()))
            case commands.ReportOverdue():
                self._shell.recorder.report("hung", facts, f"no boundary for {command.waited_ns} ns after a revoke")
            case _:
                pass

    def leave(self, session: SessionId, reason: str) -> None:
        """Report that the session has no process, or that its process holds no lane. A hand-over is reported first."""
        facts, live = self._dispatcher.state.sessions.get(session), self._roster.get(session)
        if facts is None or live is None or facts.view.is_leaving:
            return
        if not facts.end_reason:
            self._dispatcher.note(EndNote(session, reason))
        held_count = self._handover.settle_leaver(live, facts)
        self._dispatcher.submit(events.SessionLeft(session, held_count))
        self._lanes.recheck()
        if session not in self._dispatcher.state.sessions:
            self._forget(session)

    def release(self, live: LiveSession, facts: SessionFacts) -> None:
        """Report the session's memory as free if it has no process or its process is gone; otherwise wait for that."""
        if live.process is not None and live.process.state() is not ProcessState.GONE:
            return
        self.finish(facts)

    def finish(self, facts: SessionFacts) -> None:
        self._dispatcher.submit(events.SessionReleased(facts.session))
        self._forget(facts.session)

    def end(self, facts: SessionFacts, reason: str) -> None:
        """End the session's process. Other processes of its job continue."""
        live = self._roster.get(facts.session)
        # Callers repeat this until the process is gone. A session that dies slowly still counts once.
        if not facts.end_reason:
            self._dispatcher.note(EndNote(facts.session, reason))
            job = self._dispatcher.state.jobs.get(facts.job)
            if job is not None:
                self._dispatcher.change_job(job.job, ended_session_count=job.ended_session_count + 1)
            self._shell.recorder.report("ended_by_salus", facts, reason)
        if live is None or live.process is None:
            self.leave(facts.session, reason)
            return
        self._notify(live, f"ended by Salus: {reason}")
        try:
            live.process.end()
        except OperatingError as error:
            log.error("session not ended", job=facts.job, session=facts.session, why=str(error))

    def _forget(self, session: SessionId) -> None:
        live = self._roster.get(session)
        if live is not None:
            live.admitted.set()
            live.released.set()
        self._lanes.forget(session)
        self._roster.drop(session)

    @staticmethod
    def _notify(live: LiveSession, text: str) -> None:
        if live.connection is not None:
            live.connection.send(Notice(text))
