"""Session processes for the tests of libsalus; all are ended with the test."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.support.lane_session import LIBSALUS, MIB, SessionProcess
from tests.support.one_lane import OneLaneDaemon, Peers, hand_over
from tests.support.salusd import Salusd


@pytest.fixture(scope="session", autouse=True)
def native() -> None:
    subprocess.run(["make", "-s", "-C", LIBSALUS, "all", "tests"], check=True)


@pytest.fixture
def start_session() -> Iterator[Callable[..., SessionProcess]]:
    sessions: list[SessionProcess] = []

    def start(
        daemon: Salusd | None = None,
        *,
        is_pinned: bool = False,
        account: str = "",
        job_class: str = "",
        **environment: str,
    ) -> SessionProcess:
        """Start a process and attach it to the daemon, if there is one. All pinned processes share one CPU."""
        session = SessionProcess(**environment)
        sessions.append(session)
        if is_pinned:
            session.ask("pin")
        if daemon is not None:
            session.attach(daemon, account=account, job_class=job_class)
        return session

    yield start
    for session in sessions:
        session.close()


@pytest.fixture
def lent(one_lane: Callable[..., OneLaneDaemon], start_session: Callable[..., SessionProcess]) -> Peers:
    """The first session keeps a block of 1 MiB filled with 5, and the second holds the lane."""
    daemon = one_lane()
    first, second = start_session(daemon), start_session(daemon, job_class="high")
    first.ask("boundary")
    first.ask("allocate", name="kept", size=MIB, fill=5)
    hand_over(daemon, first, second)
    return daemon, first, second
