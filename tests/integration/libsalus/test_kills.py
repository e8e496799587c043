"""A session dies at every write of shared state: whoever waits gets the lane, and nothing of it is lost.

The points are those of libsalus/point.h. Two peers take turns throughout and check their survivors; victims come, run
and kill themselves at the chosen point, so the instruction is exact and not a matter of timing.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator

import pytest

from tests.support.lane_daemon import MIB, LaneDaemon
from tests.support.lane_session import LIBSALUS, SessionProcess

StartDaemon = Callable[..., LaneDaemon]
StartSession = Callable[..., SessionProcess]

_NAMES = re.findall(r"^\s+POINT_(\w+),", (LIBSALUS / "point.h").read_text(), re.MULTILINE)
IDLE_POINTS = {"IDLE", "IDLE_ENDED"}
POINTS = {name: number for number, name in enumerate(_NAMES) if name not in {"NONE", "LAST"} | IDLE_POINTS}
BLOCK_BYTES = 200_000


@pytest.fixture
def turning(start_daemon: StartDaemon, start_session: StartSession) -> Iterator[LaneDaemon]:
    """A daemon with two peers that take turns until the test is over, and then prove that nothing was damaged."""
    daemon = start_daemon()
    # On one CPU a successor tells the daemon of its start, on two a holder of its return: victims do both.
    peers = [start_session(daemon, is_pinned=True), start_session(daemon, is_pinned=True)]
    for peer in peers:
        peer.send("run_until_told", block_bytes=BLOCK_BYTES)
    yield daemon
    assert daemon.relay_count, "no successor reported its hand-over"
    for peer in peers:
        peer.process.send_signal(signal.SIGUSR1)
    assert [peer.answer() for peer in peers] == [0, 0]
    daemon.wait_until(lambda: daemon.holder is None, "nobody holds the lane")
    last = start_session(daemon)
    assert last.ask("boundary") == 1
    assert last.ask("take", name="all", size=16 * MIB, fill=1)[1], "every byte of the lane is there"
    assert daemon.held_bytes() <= daemon.settings.lane_bytes


def _kill_at(daemon: LaneDaemon, point: int, nth: int) -> None:
    victim = SessionProcess()
    try:
        if nth % 2:
            victim.ask("pin")
        assert victim.ask("hello", path=str(daemon.path))[0] == 0
        number = max(daemon.sessions)
        victim.ask("arm_point", point=point, nth=nth)
        victim.send("run_until_told", block_bytes=BLOCK_BYTES)
        assert victim.wait_end() == -signal.SIGKILL
        daemon.wait_until(lambda: not daemon.sessions[number].is_alive, "the daemon sees the death")
        grant_count = len(daemon.grants)
        daemon.wait_until(lambda: len(daemon.grants) >= grant_count + 4, "the peers go on")
    finally:
        victim.close()


@pytest.mark.parametrize("name", POINTS)
def test_the_next_waiter_gets_the_lane_when_a_session_dies(turning: LaneDaemon, name: str) -> None:
    for nth in (1, 2):
        _kill_at(turning, POINTS[name], nth)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_thousand_kills_lose_nothing(turning: LaneDaemon) -> None:
    for kill in range(1000):
        _kill_at(turning, list(POINTS.values())[kill % len(POINTS)], 1 + kill // len(POINTS) % 9)


@pytest.mark.parametrize("name", sorted(IDLE_POINTS))
def test_a_death_around_idleness_frees_the_lane(
    start_daemon: StartDaemon, start_session: StartSession, name: str
) -> None:
    daemon = start_daemon(idle_release_ns=4_000_000)
    victim, waiter = start_session(daemon), start_session(daemon)
    victim.ask("arm_point", point=_NAMES.index(name), nth=1)
    victim.ask("enter")
    victim.ask("exit")
    if name == "IDLE_ENDED":
        daemon.wait_until(lambda: daemon.sessions[1].page.read().state == 3, "the victim is idle")
        victim.send("enter")
    assert victim.wait_end() == -signal.SIGKILL
    assert waiter.ask("boundary") == 1
