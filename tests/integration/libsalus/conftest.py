"""A stand-in daemon and session processes for the tests of libsalus; everything is ended with the test."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.support.lane_daemon import LaneDaemon
from tests.support.lane_session import LIBSALUS, SessionProcess


@pytest.fixture(scope="session", autouse=True)
def native() -> None:
    subprocess.run(["make", "-s", "-C", LIBSALUS, "all", "tests"], check=True)


@pytest.fixture
def start_session() -> Iterator[Callable[..., SessionProcess]]:
    sessions: list[SessionProcess] = []

    def start(daemon: LaneDaemon | None = None, is_pinned: bool = False, **environment: str) -> SessionProcess:
        """A process; attached to the daemon if one is given. All that are pinned share one CPU."""
        sessions.append(SessionProcess(environment))
        if is_pinned:
            sessions[-1].ask("pin")
        if daemon is not None:
            answer = sessions[-1].ask("hello", path=str(daemon.path))
            assert answer[0] == 0, answer
        return sessions[-1]

    yield start
    for session in sessions:
        session.close()
