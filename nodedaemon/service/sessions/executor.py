"""Carries the engine's commands out on sessions: welcome, grant, limit, revoke, hand-over, end.

docs/protocol.md, "salusd and a session", is the specification. Every command may be carried out again after a restart;
a session that is not connected gets its orders when it comes back, from the same facts (`resume`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nodedaemon.core import commands, events
from nodedaemon.core.commands import Command
from nodedaemon.core.errors import OperatingError, SalusError
from nodedaemon.core.events import Event
from nodedaemon.core.types import Epoch, SessionId
from nodedaemon.drivers.process import ProcessState
from nodedaemon.service.devices.lanes import LaneKeeper
from nodedaemon.service.journal.dispatcher import Dispatcher
from nodedaemon.service.journal.state import EndNote, SessionFacts
from nodedaemon.service.sessions.gate_memory import GateReading
from nodedaemon.service.sessions.roster import LiveSession, Roster
from nodedaemon.wire.messages import Allow, Deny, Notice
from nodedaemon.wire.pages import GateState

#: What a page may make us believe of one grant: more iterations than a lease of a day at 1 ms has are a lie.
ITERATION_COUNT_MAX = 100_000_000


class Executor:
    """Effects on sessions. Lane memory is the `LaneKeeper`'s; timers and the log are handed in."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        roster: Roster,
        lanes: LaneKeeper,
        *,
        wake_at: Callable[[commands.WakeAt], None],
        welcome: Callable[[LiveSession, SessionFacts], None],
        revoke_raised: Callable[[], None],
        report: Callable[[str, SessionFacts, str], None],
        log: Any,
    ) -> None:
        self._dispatcher = dispatcher
        self._roster = roster
        self._lanes = lanes
        self._wake_at = wake_at
        self._welcome = welcome
        self._revoke_raised = revoke_raised
        self._report = report
        self._log = log

    def carry_out(self, command: Command) -> None:
        match command:
            case commands.OpenLane():
                self._lanes.open(command)
            case commands.ReleaseLane():
                self._lanes.release(command.lane)
            case commands.CloseLane():
                self._lanes.close(command.lane)
            case commands.WakeAt():
                self._wake_at(command)
            case _:
                facts = self._dispatcher.state.sessions.get(command.session)
                if facts is not None:
                    self._carry_out_session(command, facts)

    def on_refused(self, event: Event, error: SalusError) -> None:
        self._log.warning("event refused", kind=type(event).__name__, why=str(error))

    def _carry_out_session(self, command: Command, facts: SessionFacts) -> None:
        live = self._roster.add(facts.session)
        match command:
            case commands.AdmitSession():
                live.admitted.set()
                self._welcome(live, facts)
            case commands.Grant():
                self.start(live, facts)
            case commands.LimitGrant():
                if live.page is not None and facts.view.epoch == command.epoch:
                    live.page.limit_further(command.epoch, command.iteration_count)
            case commands.Revoke():
                if facts.view.epoch == command.epoch:
                    self.revoke(live, facts)
            case commands.ReleaseSession():
                self.release(live, facts)
            case commands.EndSession():
                self.end(facts, command.reason)
            case commands.WarnSession():
                self._tell(live, command.reason)
                self._log.warning("session warned", job=facts.job, session=facts.session, reason=command.reason)
            case commands.AllowOverrun():
                if live.connection is not None:
                    live.connection.send(Allow(command.persistent_bytes, command.ephemeral_bytes, live.overrun_serial))
            case commands.RefuseOverrun():
                self._report("overrun", facts, command.shortfall.text())
                if live.connection is not None:
                    live.connection.send(Deny(live.overrun_serial, text=command.shortfall.text()))
            case commands.ReportOverdue():
                self._report("hung", facts, f"no boundary for {command.waited_ns} ns after a revoke")
            case _:
                pass

    # Grants

    def start(self, live: LiveSession, facts: SessionFacts) -> None:
        """Let the session run under its present grant; again where a hand-over has started it already."""
        if live.page is None or live.turn is None or facts.view.epoch is None:
            return
        epoch, lane = facts.view.epoch, facts.view.lane
        assert lane is not None
        reading = live.page.read()
        is_running = reading.state in (GateState.RUNNING, GateState.IDLE) and reading.epoch == epoch
        if not is_running:
            if not self._lanes.hand_over(facts, live, lane.id):
                return
            live.page.arm(lane.id, lane.epoch, epoch, facts.view.lease_limit)
        live.page.start(epoch)
        if not is_running:
            live.turn.ring(live.slot)

    def revoke(self, live: LiveSession, facts: SessionFacts) -> None:
        """Have the grant returned at the next boundary, to the successor named last where it can start directly."""
        if live.page is None or facts.view.epoch is None:
            return
        if self._replace_successor(live, facts):
            live.page.limit(facts.view.epoch, 0)
        if not self.take_idle(live, facts):
            self._revoke_raised()

    def _replace_successor(self, live: LiveSession, facts: SessionFacts) -> bool:
        """Name the new successor; False when the holder has taken the one before, which then runs."""
        assert live.page is not None
        others = [epoch for epoch in facts.view.offers if epoch != facts.view.successor_epoch]
        was_taken = bool(others) and not live.page.withdraw_successor() and self._has_started(facts, others)
        if was_taken:
            return False
        for epoch in others:
            self._disarm(facts.view.offers[epoch], epoch)
        successor = self._roster.get(facts.view.successor)
        if successor is None or facts.view.successor_epoch is None or successor.page is None or live.turn is None:
            return True
        mate = self._dispatcher.state.sessions.get(successor.session)
        lane = facts.view.lane
        if mate is None or lane is None or successor.turn is not live.turn:
            return True
        if self._lanes.hand_over(mate, successor, lane.id):
            successor.page.arm(lane.id, lane.epoch, facts.view.successor_epoch, None)
            live.page.name_successor(successor.slot, facts.view.successor_epoch)
        return True

    def _has_started(self, facts: SessionFacts, epochs: list[Epoch]) -> bool:
        for epoch in epochs:
            mate = self._roster.get(facts.view.offers[epoch])
            if mate is not None and mate.page is not None:
                reading = mate.page.read()
                if reading.state is GateState.RUNNING and reading.epoch == epoch:
                    return True
        return False

    def _disarm(self, session: SessionId, epoch: int) -> bool:
        """True when the session will not run that epoch any more."""
        mate = self._roster.get(session)
        if mate is None or (mate.page is None and mate.process is None):
            return True
        # One that lives and has not come back after a restart may well be running: better to wait for it.
        return mate.page is not None and mate.page.disarm(epoch)

    def take_idle(self, live: LiveSession, facts: SessionFacts) -> bool:
        """Take the lease of an idle session back, if it is idle now."""
        if live.page is None or facts.view.epoch is None or not live.page.take_idle(facts.view.epoch):
            return False
        epoch = facts.view.epoch
        if facts.view.successor_epoch is not None and live.page.withdraw_successor():
            self._disarm(facts.view.offers[facts.view.successor_epoch], facts.view.successor_epoch)
        self._dispatcher.submit(
            events.GrantReturned(
                facts.session, Epoch(epoch), self._noted_count(live.page.read(), epoch), wants_next=False
            )
        )
        return True

    def settle(self, live: LiveSession, facts: SessionFacts) -> Epoch | None:
        """For a holder that is gone: the epoch of the successor that it started, or None with nobody armed any more."""
        started: Epoch | None = None
        if live.page is not None:
            live.page.withdraw_successor()
        for epoch, session in facts.view.offers.items():
            if not self._disarm(session, epoch):
                started = Epoch(epoch)
        return started

    def settle_over(self, live: LiveSession, facts: SessionFacts) -> bool:
        """Whether the session's page says that its grant is over; if so the engine is told, hand-over included.

        RETURN says the same where it comes: it does not after a restart, nor where the successor tells in its place.
        """
        if facts.view.epoch is None or live.page is None:
            return False
        reading = live.page.read()
        if reading.epoch != facts.view.epoch or reading.state in (GateState.RUNNING, GateState.IDLE):
            return False
        epoch = Epoch(facts.view.epoch)
        count = self._noted_count(reading, epoch)
        contended_count = min(reading.returned_contended_count, count) if reading.returned_epoch == epoch else 0
        wants_next = reading.state is GateState.WAITING
        started = self.settle(live, facts)
        self._dispatcher.submit(events.GrantReturned(facts.session, epoch, count, contended_count, wants_next, started))
        return True

    def settle_offers_to(self, session: SessionId) -> None:
        """Holders that may have started this session and left it to that one to say so."""
        for facts in list(self._dispatcher.state.sessions.values()):
            live = self._roster.get(facts.session)
            if live is not None and session in facts.view.offers.values():
                self.settle_over(live, facts)

    # Ends

    def leave(self, session: SessionId, reason: str) -> None:
        """The process is gone, or holds no lane and wants none: tell the engine, hand-over first."""
        state = self._dispatcher.state
        facts, live = state.sessions.get(session), self._roster.get(session)
        if facts is None or live is None or facts.view.is_leaving:
            return
        self.settle_offers_to(session)
        if not facts.end_reason:
            self._dispatcher.note(EndNote(session, reason))
        held_count = 0
        if facts.view.epoch is not None:
            epoch = Epoch(facts.view.epoch)
            started = self.settle(live, facts)
            if started is not None:
                count = self._started_count(live)
                self._dispatcher.submit(
                    events.GrantReturned(session, epoch, count, wants_next=False, handed_over=started)
                )
            elif live.page is not None and (reading := live.page.read()).epoch == epoch:
                held_count = self._noted_count(reading, epoch)
        self._dispatcher.submit(events.SessionLeft(session, held_count))
        self._lanes.recheck()
        if session not in state.sessions:
            self._forget(session)

    def release(self, live: LiveSession, facts: SessionFacts) -> None:
        """Its memory is free once its process is gone, or never had one; else its pidfd or the deadline says so."""
        if live.process is not None and live.process.state() is not ProcessState.GONE:
            return
        self.finish(facts)

    def finish(self, facts: SessionFacts) -> None:
        self._dispatcher.submit(events.SessionReleased(facts.session))
        self._forget(facts.session)

    def end(self, facts: SessionFacts, reason: str) -> None:
        """End the session's process, and nothing else."""
        live = self._roster.get(facts.session)
        self._dispatcher.note(EndNote(facts.session, reason))
        self._report("ended_by_salus", facts, reason)
        if live is None or live.process is None:
            self.leave(facts.session, reason)
            return
        self._tell(live, f"ended by Salus: {reason}")
        try:
            live.process.end()
        except OperatingError as error:
            self._log.error("session not ended", job=facts.job, session=facts.session, why=str(error))

    def _forget(self, session: SessionId) -> None:
        live = self._roster.get(session)
        if live is not None:
            live.admitted.set()
            live.released.set()
        self._lanes.forget(session)
        self._roster.drop(session)

    @staticmethod
    def _noted_count(reading: GateReading, epoch: int) -> int:
        is_noted = reading.returned_epoch == epoch
        return min(reading.returned_count if is_noted else reading.started_count, ITERATION_COUNT_MAX)

    @staticmethod
    def _started_count(live: LiveSession) -> int:
        if live.page is None:
            return 0
        return min(live.page.read().started_count, ITERATION_COUNT_MAX)

    @staticmethod
    def _tell(live: LiveSession, text: str) -> None:
        if live.connection is not None:
            live.connection.send(Notice(text))
