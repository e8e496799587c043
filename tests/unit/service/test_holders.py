"""Holders that keep others waiting are watched until nothing is left to wait for."""

from types import SimpleNamespace

import structlog

from nodedaemon.core.engine import Engine
from nodedaemon.core.types import DeviceId
from nodedaemon.service.devices.holders import HolderWatch
from nodedaemon.service.journal.state import SessionFacts, ShellState
from nodedaemon.service.sessions.roster import Roster

DEVICE = DeviceId("GPU-1")


class HeldTimers:
    """A loop whose timers fire when the test calls `ring`."""

    def __init__(self):
        self.due = []

    def call_later(self, _seconds, callback):
        self.due.append(callback)
        return SimpleNamespace(cancel=lambda: None)

    def ring(self):
        due, self.due = self.due, []
        for callback in due:
            callback()


def test_the_next_holder_is_watched_after_a_grant_is_found_over():
    """No limit and no revoke would reach the next holder: it goes idle while another session waits."""
    timers = HeldTimers()
    dispatcher = SimpleNamespace(state=ShellState(Engine()))
    roster = Roster()
    first, second = (
        SessionFacts(
            SimpleNamespace(epoch=epoch, is_waiting=epoch is None, is_revoked=False, is_gated=True),
            number,
            "1",
            DEVICE,
            5,
        )
        for number, epoch in ((1, 7), (2, None))
    )
    # In this order, because the second has been passed over when the first one's grant is found over.
    dispatcher.state.sessions.update({2: second, 1: first})
    roster.add(1), roster.add(2)

    def settle_over(_live, facts):
        """The grant goes from the first to the second, and the first wants the next one."""
        if facts is not first:
            return False
        first.view.epoch, first.view.is_waiting = None, True
        second.view.epoch, second.view.is_waiting = 8, False
        return True

    idle, taken = [], []

    def take_idle(_live, facts):
        taken.extend(facts.session for one in idle if one is facts)
        return facts in idle

    handover = SimpleNamespace(settle_over=settle_over, take_idle=take_idle)
    HolderWatch(dispatcher, roster, handover, timers, structlog.get_logger()).look_soon()
    timers.ring()
    idle.append(second)
    timers.ring()
    assert taken == [2]
    # No session holds or waits: it looks no more.
    second.view.epoch, first.view.is_waiting = None, False
    idle.clear()
    timers.ring()
    assert timers.due == []
