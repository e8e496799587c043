"""Grants on gate pages: start, revoke, hand over, and find out how a grant ended.

Theory of operation. The engine decides who runs; the words of a gate page carry the decision to the process. A grant
has an epoch, and an epoch is used for one grant only. A session may run under an epoch when three things agree: its
page was armed with that epoch, its lane memory has arrived, and the epoch was started. The starter is the daemon
(`start`) or the current holder, to which the daemon named the session as successor (`revoke`).

Who may change what: the daemon writes lease, grant, lane and successor of every page, and changes the state word only
to take an armed epoch back (`disarm`) or to take the lease of an idle session (`take_idle`). Everything else in the
state word belongs to the session. Both sides change that word by compare-and-swap, so only one of two conflicting steps
succeeds. docs/protocol.md and libsalus/gate.c describe the session's side.

Why a hand-over cannot double a grant: the daemon arms at most one successor that can still be started. Before it names
another one it withdraws the offer, which fails if the holder has taken it, and disarms the session that was named. A
session that cannot be disarmed has started, or may have: it counts as running, and no other session is armed.

Why a hand-over cannot lose a grant: the engine keeps every offer made under a grant until the grant is returned. When a
holder returns, dies, or was found finished, `settle` withdraws and disarms every offer. An offer that cannot be
disarmed was taken, and the engine learns its epoch with `GrantReturned`. If none was taken, the lane is free and the
engine grants it again. RETURN normally reports the same; if it was lost with the daemon, the pages still show it.
"""

from __future__ import annotations

from nodedaemon.core import events
from nodedaemon.core.types import Epoch, SessionId
from nodedaemon.service.devices.lanes import LaneAllocator
from nodedaemon.service.journal.state import SessionFacts
from nodedaemon.service.sessions.bounds import bounded_count
from nodedaemon.service.sessions.gate_memory import GateReading
from nodedaemon.service.sessions.roster import LiveSession
from nodedaemon.service.shell import Shell
from nodedaemon.wire.pages import GateState


class Handover:
    def __init__(self, shell: Shell, lanes: LaneAllocator) -> None:
        self._dispatcher, self._roster = shell.dispatcher, shell.roster
        self._lanes = lanes

    def start(self, live: LiveSession, facts: SessionFacts) -> None:
        """Let the session run under its current grant. Safe to repeat, even if its predecessor has started it."""
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
        """Have the grant returned at the next boundary, or handed to the successor that was named last."""
        if live.page is None or facts.view.epoch is None:
            return
        if self._replace_successor(live, facts):
            live.page.limit(facts.view.epoch, 0)
        self.take_idle(live, facts)

    def take_idle(self, live: LiveSession, facts: SessionFacts) -> bool:
        """Take the lease back if the session is idle now."""
        epoch = facts.view.epoch
        if live.page is None or epoch is None or not live.page.take_idle(epoch):
            return False
        successor_epoch = facts.view.successor_epoch
        if successor_epoch is not None and live.page.withdraw_successor():
            self._disarm(facts.view.offers[successor_epoch], successor_epoch)
        count = self._count_under(live.page.read(), facts)
        self._dispatcher.submit(events.GrantReturned(facts.session, epoch, count, wants_next=False))
        return True

    def settle(self, live: LiveSession, facts: SessionFacts) -> Epoch | None:
        """For a holder that has stopped: the epoch of the successor that it started; None if no successor can start."""
        started: Epoch | None = None
        if live.page is not None:
            live.page.withdraw_successor()
        for epoch, session in facts.view.offers.items():
            if not self._disarm(session, epoch):
                started = epoch
        return started

    def settle_over(self, live: LiveSession, facts: SessionFacts) -> bool:
        """Report the end of the grant, with its hand-over, if the page shows that it is over.

        RETURN reports the same. It is missing after a restart, and when the successor reports in its place.
        """
        if facts.view.epoch is None or live.page is None:
            return False
        reading = live.page.read()
        if reading.epoch != facts.view.epoch or reading.state in (GateState.RUNNING, GateState.IDLE):
            return False
        epoch = facts.view.epoch
        count = self._count_under(reading, facts)
        contended_count = min(reading.returned_contended_count, count) if reading.returned_epoch == epoch else 0
        wants_next = reading.state is GateState.WAITING
        started = self.settle(live, facts)
        self._dispatcher.submit(events.GrantReturned(facts.session, epoch, count, contended_count, wants_next, started))
        return True

    def settle_offers_to(self, session: SessionId) -> None:
        """Check every holder that may have started this session and left the report to it."""
        for facts in list(self._dispatcher.state.sessions.values()):
            live = self._roster.get(facts.session)
            if live is not None and session in facts.view.offers.values():
                self.settle_over(live, facts)

    def settle_leaver(self, live: LiveSession, facts: SessionFacts) -> int:
        """Report the hand-over of a session that leaves. Returns the iterations under a grant that it still holds."""
        self.settle_offers_to(facts.session)
        epoch = facts.view.epoch
        if epoch is None:
            return 0
        started = self.settle(live, facts)
        reading = live.page.read() if live.page is not None else None
        if started is not None:
            count = self._bounded(reading.started_count, facts) if reading is not None else 0
            event = events.GrantReturned(facts.session, epoch, count, wants_next=False, handed_over=started)
            self._dispatcher.submit(event)
        elif reading is not None and reading.epoch == epoch:
            return self._count_under(reading, facts)
        return 0

    def _replace_successor(self, live: LiveSession, facts: SessionFacts) -> bool:
        """Name the new successor. False if the holder has taken the previous offer, so that the previous one runs."""
        assert live.page is not None
        view = facts.view
        others = [epoch for epoch in view.offers if epoch != view.successor_epoch]
        was_taken = bool(others) and not live.page.withdraw_successor() and self._has_started(facts, others)
        if was_taken:
            return False
        for epoch in others:
            self._disarm(view.offers[epoch], epoch)
        successor, lane = self._roster.get(view.successor), view.lane
        if successor is None or view.successor_epoch is None or successor.page is None or live.turn is None:
            return True
        successor_facts = self._dispatcher.state.sessions.get(successor.session)
        if successor_facts is None or lane is None or successor.turn is not live.turn:
            return True
        if self._lanes.hand_over(successor_facts, successor, lane.id):
            successor.page.arm(lane.id, lane.epoch, view.successor_epoch, None)
            live.page.name_successor(successor.slot, view.successor_epoch)
        return True

    def _has_started(self, facts: SessionFacts, epochs: list[Epoch]) -> bool:
        for epoch in epochs:
            successor = self._roster.get(facts.view.offers[epoch])
            if successor is not None and successor.page is not None:
                reading = successor.page.read()
                if reading.state is GateState.RUNNING and reading.epoch == epoch:
                    return True
        return False

    def _disarm(self, session: SessionId, epoch: int) -> bool:
        """True if the session cannot run that epoch any more."""
        live = self._roster.get(session)
        if live is None or (live.page is None and live.process is None):
            return True
        # A live session that has not reconnected after a restart may be running: wait for it.
        return live.page is not None and live.page.disarm(epoch)

    def _count_under(self, reading: GateReading, facts: SessionFacts) -> int:
        """The iterations that the page claims under the session's grant."""
        is_returned = reading.returned_epoch == facts.view.epoch
        return self._bounded(reading.returned_count if is_returned else reading.started_count, facts)

    def _bounded(self, count: int, facts: SessionFacts) -> int:
        return bounded_count(count, facts, self._dispatcher.clock())
