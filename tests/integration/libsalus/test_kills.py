"""A session is killed at every write of shared state: the next waiter gets the lane, and no byte of it is lost.

The points are those of libsalus/point.h. Two peers take turns throughout and check their survivors. Victims attach, run
and kill themselves at the chosen point, so the place is exact and does not depend on timing.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest

from nodedaemon.wire.pages import GateState
from tests.support.lane_session import MIB, POINTS, SessionProcess
from tests.support.one_lane import OneLaneDaemon, open_gate_page
from tests.support.salusd import wait_until

StartDaemon = Callable[..., OneLaneDaemon]
StartSession = Callable[..., SessionProcess]

IDLE_POINTS = ["IDLE", "IDLE_ENDED"]
#: The points that a session passes while it takes turns.
TURN_POINTS = [name for name in POINTS if name not in ("NONE", "LAST", *IDLE_POINTS)]
BLOCK_BYTES = 200_000
LANE_BYTES = 16 * MIB


class Turns:
    """Two peers that take turns, and victims that join them."""

    def __init__(self, daemon: OneLaneDaemon, start_session: StartSession) -> None:
        self.daemon = daemon
        self._start_session = start_session
        # On one CPU a successor reports the hand-over, on two CPUs the holder does. Victims do both.
        self.peers = [start_session(daemon, is_pinned=True) for _ in range(2)]
        for peer in self.peers:
            peer.send("run_until_signal", block_bytes=BLOCK_BYTES)

    def kill_at(self, name: str, nth: int) -> None:
        """A victim dies when it passes the point for the `nth` time; then the peers continue."""
        victim = SessionProcess()
        try:
            if nth % 2:
                victim.ask("pin")
            victim.attach(self.daemon)
            victim.ask("arm_point", point=POINTS[name], nth=nth)
            victim.send("run_until_signal", block_bytes=BLOCK_BYTES)
            assert victim.wait_end() == -signal.SIGKILL
        finally:
            victim.close()
        wait_until(lambda: not self.daemon.session(victim.pid), f"the victim of {name} has left", self.daemon.describe)
        handover_count = self._handover_count()
        wait_until(
            lambda: self._handover_count() >= handover_count + 4, f"turns after {name} {nth}", self.daemon.describe
        )

    def _handover_count(self) -> int:
        return sum(session["handover_count"] for session in self.daemon.status()["sessions"])

    def check(self) -> None:
        """End the turns: nothing was damaged, and the next session can use the whole lane."""
        for peer in self.peers:
            peer.process.send_signal(signal.SIGUSR1)
        assert [peer.answer() for peer in self.peers] == [0, 0], "survivors that were damaged"
        assert sum(peer.ask("point_passed_count", point=POINTS["STARTED_SENT"]) for peer in self.peers) > 0
        wait_until(lambda: self.daemon.lane()["holder"] is None, "nobody holds the lane", self.daemon.describe)
        last = self._start_session(self.daemon)
        assert last.ask("boundary") == 1
        assert last.ask("allocate", name="all", size=LANE_BYTES, fill=1)["is_lane"]
        lane = self.daemon.lane()
        assert lane["held_bytes"] <= lane["size_bytes"] == LANE_BYTES
        (device,) = self.daemon.status()["devices"]
        sessions = self.daemon.status()["sessions"]
        assert device["persistent_bytes"] == sum(session["persistent_bytes"] for session in sessions)


@pytest.fixture
def turns(one_lane: StartDaemon, start_session: StartSession) -> Iterator[Turns]:
    turns = Turns(one_lane(), start_session)
    yield turns
    turns.check()


@pytest.mark.parametrize("name", TURN_POINTS)
def test_the_next_waiter_gets_the_lane_when_a_session_dies(turns: Turns, name: str) -> None:
    for nth in (1, 2):
        turns.kill_at(name, nth)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_thousand_kills_lose_nothing(turns: Turns) -> None:
    for kill in range(1000):
        turns.kill_at(TURN_POINTS[kill % len(TURN_POINTS)], 1 + kill // len(TURN_POINTS) % 9)


@pytest.mark.parametrize("name", IDLE_POINTS)
def test_a_death_while_idle_frees_the_lane(one_lane: StartDaemon, start_session: StartSession, name: str) -> None:
    daemon = one_lane(IdleRelease="4ms")
    victim, waiter = start_session(daemon), start_session(daemon)
    page = open_gate_page(victim.pid)
    victim.ask("arm_point", point=POINTS[name], nth=1)
    victim.ask("enter")
    victim.ask("exit")
    if name == "IDLE_ENDED":
        wait_until(lambda: page.read().state is GateState.IDLE, "the victim is idle", daemon.describe)
        victim.send("enter")
    page.close()
    assert victim.wait_end() == -signal.SIGKILL
    assert waiter.ask("boundary") == 1
