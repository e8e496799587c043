"""Readings that fail, hang, recover, or show strangers become events; nothing blocks the daemon."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
import structlog

from nodedaemon.core.engine import Engine
from nodedaemon.core.errors import OperatingError
from nodedaemon.core.events import DeviceAdded
from nodedaemon.core.types import MIB, DeviceId, DeviceLimits
from nodedaemon.drivers.device import ProcessReading, Reading
from nodedaemon.service.devices.readings import Sampler
from nodedaemon.service.journal.dispatcher import Dispatcher
from nodedaemon.service.journal.state import SessionFacts, ShellState
from nodedaemon.service.sessions.roster import Roster

DEVICE = DeviceId("GPU-1")


class FakeDevice:
    """A GPU that answers what the test says; `hang` holds a reading until it is released."""

    uuid, is_slow = DEVICE, True

    def __init__(self):
        self.answer = Reading(0, 100)
        self.hang = None

    def read(self, pids):
        if self.hang is not None:
            self.hang.wait(30)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def node():
    dispatcher = Dispatcher(ShellState(Engine()), iter(range(1, 10_000)).__next__)
    dispatcher.submit(DeviceAdded(DEVICE, DeviceLimits(64 * MIB)))
    device, told = FakeDevice(), []
    lanes = SimpleNamespace(watch=lambda: None, is_releasing=False, recheck=lambda: None)

    def make(loop):
        return Sampler(
            dispatcher,
            Roster(),
            lanes,
            None,
            {DEVICE: device},
            loop=loop,
            timeout_s=lambda: 0.2,
            sweep=lambda: None,
            report_device=lambda _, fault: told.append(fault),
            report_strangers=lambda _, text: told.append(text),
            log=structlog.get_logger(),
        )

    return SimpleNamespace(dispatcher=dispatcher, device=device, told=told, make=make)


def lost_reason(node):
    return node.dispatcher.engine.snapshot().devices[0].lost_reason


def sample(node, *answers):
    """Take one reading for each answer, with one sampler; what the engine thinks after each."""

    async def work():
        sampler = node.make(asyncio.get_running_loop())
        seen = []
        for answer in answers:
            node.device.answer = answer
            await sampler.sample()
            seen.append(lost_reason(node))
        sampler.close()
        return seen

    return asyncio.run(work())


def test_a_device_that_fails_is_lost_and_comes_back_by_itself(node):
    assert sample(node, OperatingError("fell off the bus"), OperatingError("still"), Reading(0, 100)) == [
        "fell off the bus",
        "fell off the bus",
        None,
    ]


def test_a_reading_that_hangs_is_given_up_and_the_next_one_is_taken_in_another_thread(node):
    async def work():
        sampler = node.make(asyncio.get_running_loop())
        node.device.hang = hang = threading.Event()
        await sampler.sample()
        assert lost_reason(node) == "it does not answer"
        node.device.hang = None
        await sampler.sample()
        assert lost_reason(node) is None
        hang.set()
        sampler.close()

    asyncio.run(work())


def test_faults_and_strangers_are_told_once(node):
    stranger = Reading(50, 100, (ProcessReading(4242, 50),), faults=("xid 79",))
    calm = Reading(50, 100, (ProcessReading(4242, 50),))
    sample(node, stranger, calm, Reading(0, 100), calm)
    assert [text for text in node.told if "4242" in text] == ["pids [4242] hold 50 bytes"] * 2
    assert node.told.count("xid 79") == 1


class HeldTimers:
    """A loop whose timers ring when the test says so."""

    def __init__(self):
        self.due = []

    def call_later(self, _seconds, callback):
        self.due.append(callback)
        return SimpleNamespace(cancel=lambda: None)

    def ring(self):
        due, self.due = self.due, []
        for callback in due:
            callback()


def test_who_got_a_grant_that_was_found_over_is_looked_at_too(node):
    """A holder that no limit and no revoke would ever bring up again: it goes idle while another waits."""
    timers = HeldTimers()
    sampler = node.make(timers)
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
    # In this order: the second was passed over when the first one's grant is found over.
    node.dispatcher.state.sessions.update({2: second, 1: first})
    sampler._roster.add(1), sampler._roster.add(2)

    def settle_over(_live, facts):
        """The first's grant goes to the second, and the first wants the next one."""
        if facts is not first:
            return False
        first.view.epoch, first.view.is_waiting = None, True
        second.view.epoch, second.view.is_waiting = 8, False
        return True

    idle, taken = [], []

    def take_idle(_live, facts):
        taken.extend(facts.session for one in idle if one is facts)
        return facts in idle

    sampler._executor = SimpleNamespace(settle_over=settle_over, take_idle=take_idle)
    sampler.watch_soon()
    timers.ring()
    idle.append(second)
    timers.ring()
    assert taken == [2]
    # Nobody holds or waits: the looks end.
    second.view.epoch, first.view.is_waiting = None, False
    idle.clear()
    timers.ring()
    assert timers.due == []
