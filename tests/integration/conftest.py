"""A real salusd and its workers, and a stand-in for salusd; all are ended with the test."""

import subprocess

import pytest

from tests.support.lane_daemon import LaneDaemon, Settings
from tests.support.rogues import RogueHandle
from tests.support.salusd import ROOT, Salusd
from tests.support.workers import Crew


@pytest.fixture(scope="session")
def libsalus():
    subprocess.run(["make", "-s", "-C", str(ROOT / "nodedaemon/job/libsalus"), "all"], check=True)


@pytest.fixture
def salusd():
    """Gives a function that starts a daemon; all are stopped after the test."""
    daemons = []

    def start(**options):
        daemon = Salusd(**options)
        daemons.append(daemon)
        daemon.start()
        return daemon

    yield start
    for daemon in daemons:
        daemon.__exit__()


@pytest.fixture
def start_daemon(tmp_path):
    """A function that starts a stand-in for salusd. None may have failed by the end of the test."""
    daemons = []

    def start(**settings):
        folder = tmp_path / str(len(daemons))
        folder.mkdir()
        daemons.append(LaneDaemon(folder, Settings(**settings)))
        return daemons[-1]

    yield start
    for daemon in daemons:
        daemon.close()
        assert daemon.error is None


@pytest.fixture
def crew(libsalus):
    """Gives a function that makes a crew for a daemon."""
    crews = []

    def make(daemon):
        crews.append(Crew(daemon))
        return crews[-1]

    yield make
    for one in crews:
        one.close()


@pytest.fixture
def rogue():
    """Gives a function that starts a rogue session of a daemon."""
    rogues = []

    def start(daemon, **options):
        rogues.append(RogueHandle(daemon, **options))
        return rogues[-1]

    yield start
    for one in rogues:
        one.close()
