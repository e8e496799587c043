"""A job's time limit grows by each whole minute that it waited at the gate, up to the bound."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from nodedaemon.config.keys import Settings
from nodedaemon.core.errors import OperatingError
from nodedaemon.core.state.sessions import SessionState
from nodedaemon.service.jobs.time_limits import MINUTE_NS, TimeLimits


class Node:
    def __init__(self):
        self.jobs, self.sessions, self.now_ns = {}, [], 0
        self.extended, self.noted, self.is_refused = [], [], False
        self.order = replace(Settings().order, extend_time=True)
        self.limits = self.make()

    def make(self):
        slurm = SimpleNamespace(commands=lambda: self)
        configuration = SimpleNamespace(for_partition=lambda _: replace(Settings(), order=self.order))
        return TimeLimits(SimpleNamespace(configuration=configuration, dispatcher=self, slurm=slurm))

    # The parts of a dispatcher that TimeLimits uses.

    @property
    def state(self):
        return self

    @property
    def engine(self):
        return SimpleNamespace(snapshot=lambda: SimpleNamespace(devices=[self]))

    def change_job(self, job, extended_minutes):
        self.jobs[job].extended_minutes = extended_minutes
        self.noted.append(extended_minutes)

    def clock(self):
        return self.now_ns

    def add(self, job, *, is_local=False):
        self.jobs[job] = SimpleNamespace(job=job, partition="p", is_local=is_local, is_ended=False, extended_minutes=0)

    def wait_of(self, job, waited_ns, session=1, state=SessionState.IDLE, wanted_ns=0):
        one = SimpleNamespace(session=session, job=job, waited_ns=waited_ns, state=state, wanted_ns=wanted_ns)
        self.sessions = [*(old for old in self.sessions if old.session != session), one]

    async def extend_limit(self, job, minutes):
        if self.is_refused:
            raise OperatingError("scontrol: Access denied")
        self.extended.append((job, minutes))

    def look(self):
        asyncio.run(self.limits.extend())


@pytest.fixture
def node():
    made = Node()
    made.add("7")
    return made


def test_each_whole_minute_is_added_once(node):
    for waited_ns, minutes_added in (
        (MINUTE_NS - 1, []),
        (MINUTE_NS, [1]),
        (MINUTE_NS + 1, [1]),
        (4 * MINUTE_NS, [1, 3]),
    ):
        node.wait_of("7", waited_ns)
        node.look()
        node.look()
        assert [minutes for _, minutes in node.extended] == minutes_added
    assert node.noted == [1, 4]


def test_a_wait_under_way_and_sessions_that_left_count(node):
    node.wait_of("7", 2 * MINUTE_NS)
    node.look()
    node.sessions = []
    node.now_ns = 10 * MINUTE_NS
    node.wait_of("7", 0, session=2, state=SessionState.WAITING, wanted_ns=9 * MINUTE_NS)
    node.look()
    assert node.extended == [("7", 2), ("7", 1)]


def test_no_job_gets_more_than_the_bound_and_a_restart_adds_nothing_twice(node):
    node.order = replace(node.order, extend_time_max_ns=5 * MINUTE_NS)
    node.wait_of("7", 100 * MINUTE_NS)
    node.look()
    node.limits = node.make()
    node.look()
    assert node.extended == [("7", 5)]


def test_a_refused_change_is_tried_again(node):
    node.is_refused = True
    node.wait_of("7", MINUTE_NS)
    node.look()
    assert node.jobs["7"].extended_minutes == 0
    node.is_refused = False
    node.look()
    assert node.extended == [("7", 1)]


def test_without_the_key_and_for_local_jobs_nothing_is_extended(node):
    node.add("local-1", is_local=True)
    node.wait_of("local-1", 9 * MINUTE_NS, session=2)
    node.look()
    node.order = Settings().order
    node.wait_of("7", 9 * MINUTE_NS)
    node.look()
    assert node.extended == []
