"""A holder that keeps others waiting is watched as long as a session waits."""

from types import SimpleNamespace

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


def test_the_next_holder_is_watched_after_the_page_showed_the_end_of_a_grant():
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
    # The second session comes first, so it has already been checked when the grant of the first one ends.
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
    shell = SimpleNamespace(dispatcher=dispatcher, roster=roster)
    HolderWatch(shell, handover, timers).check_soon()
    timers.ring()
    idle.append(second)
    timers.ring()
    assert taken == [2]
    # No session holds a grant or waits for one, so no further look is due.
    second.view.epoch, first.view.is_waiting = None, False
    idle.clear()
    timers.ring()
    assert timers.due == []
