"""Real daemons and their workers and sessions; all are ended with the test or with its module."""

import subprocess

import pytest

from tests.support.one_lane import OneLaneDaemon
from tests.support.rogues import RogueHandle
from tests.support.salusd import ROOT, Salusd
from tests.support.workers import Crew


@pytest.fixture(scope="session")
def libsalus():
    subprocess.run(["make", "-s", "-C", str(ROOT / "nodedaemon/job/libsalus"), "all"], check=True)


@pytest.fixture
def salusd():
    """A function that starts a daemon; all are stopped after the test."""
    daemons = []

    def start(**options):
        daemon = Salusd(**options)
        daemons.append(daemon)
        daemon.start()
        return daemon

    yield start
    for daemon in daemons:
        daemon.__exit__()


@pytest.fixture(scope="module")
def one_lane_daemons():
    """The daemons of a module by their configuration: tests share them, because a start takes a second.

    At the end, no daemon may have failed, and a replay of each journal must give the state that the daemon had.
    """
    daemons = {}
    yield daemons
    outcomes = [(daemon.stop(), daemon.replay_mismatch_count()) for daemon in daemons.values()]
    for daemon in daemons.values():
        daemon.__exit__()
    assert outcomes == [(0, 0)] * len(daemons)


@pytest.fixture
def one_lane(one_lane_daemons):
    """A function that returns a daemon with one lane, without sessions of earlier tests."""

    def get(**options):
        key = tuple(sorted(options.items()))
        if key not in one_lane_daemons:
            one_lane_daemons[key] = OneLaneDaemon(**options)
            one_lane_daemons[key].start()
        one_lane_daemons[key].wait_empty()
        return one_lane_daemons[key]

    return get


@pytest.fixture
def crew(libsalus):
    """A function that makes a crew for a daemon."""
    crews = []

    def make(daemon):
        crews.append(Crew(daemon))
        return crews[-1]

    yield make
    for one in crews:
        one.close()


@pytest.fixture
def rogue():
    """A function that starts a rogue session of a daemon."""
    rogues = []

    def start(daemon, **options):
        rogues.append(RogueHandle(daemon, **options))
        return rogues[-1]

    yield start
    for one in rogues:
        one.close()
