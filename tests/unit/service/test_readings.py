"""Readings that fail, hang, recover or show foreign processes become events; nothing blocks the daemon."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from nodedaemon.core.engine import Engine
from nodedaemon.core.errors import OperatingError
from nodedaemon.core.events import DeviceAdded
from nodedaemon.core.types import MIB, DeviceId, DeviceLimits
from nodedaemon.drivers.device import ProcessReading, Reading
from nodedaemon.service.devices.readings import DeviceReadings
from nodedaemon.service.journal.dispatcher import Dispatcher
from nodedaemon.service.journal.state import ShellState
from nodedaemon.service.sessions.roster import Roster
from nodedaemon.service.shell import Shell

DEVICE = DeviceId("GPU-1")


class FakeDevice:
    """A GPU that returns `answer`. If `hang` is an event, a reading waits until it is set."""

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
    device, reports = FakeDevice(), []
    settings = SimpleNamespace(readings=SimpleNamespace(timeout_ns=200_000_000))
    recorder = SimpleNamespace(report_device=lambda _kind, _device, detail: reports.append(detail))

    def make():
        configuration = SimpleNamespace(settings=settings)
        return DeviceReadings(Shell(configuration, {DEVICE: device}, dispatcher, Roster(), recorder, None))

    return SimpleNamespace(dispatcher=dispatcher, device=device, reports=reports, make=make)


def lost_reason(node):
    return node.dispatcher.engine.snapshot().devices[0].lost_reason


def sample(node, *answers):
    """Take one reading for each answer; returns why the engine considers the device lost after each."""

    async def work():
        readings = node.make()
        seen = []
        for answer in answers:
            node.device.answer = answer
            await readings.sample()
            seen.append(lost_reason(node))
        readings.close()
        return seen

    return asyncio.run(work())


def test_a_device_that_fails_is_lost_until_the_next_good_reading(node):
    assert sample(node, OperatingError("fell off the bus"), OperatingError("still"), Reading(0, 100)) == [
        "fell off the bus",
        "fell off the bus",
        None,
    ]


def test_a_reading_that_hangs_times_out_and_the_next_one_uses_another_thread(node):
    async def work():
        readings = node.make()
        node.device.hang = hang = threading.Event()
        await readings.sample()
        assert lost_reason(node) == "it does not answer"
        node.device.hang = None
        await readings.sample()
        assert lost_reason(node) is None
        hang.set()
        readings.close()

    asyncio.run(work())


def test_faults_and_foreign_processes_are_reported_once(node):
    foreign = Reading(50, 100, (ProcessReading(4242, 50),), faults=("xid 79",))
    calm = Reading(50, 100, (ProcessReading(4242, 50),))
    sample(node, foreign, calm, Reading(0, 100), calm)
    assert [text for text in node.reports if "4242" in text] == ["pids [4242] hold 50 bytes"] * 2
    assert node.reports.count("xid 79") == 1
