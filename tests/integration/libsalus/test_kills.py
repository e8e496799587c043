"""A session dies at every write of shared state: the next waiter gets the lane, and none of the lane's memory is lost.

The points are those of libsalus/point.h. Two peers take turns throughout and check their survivors. Victims join, run
and kill themselves at the chosen point, so the test does not depend on timing.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from nodedaemon.service.sessions.gate_memory import GateState
from tests.support.lane_node import LANE_MIB, MIB, LaneNode
from tests.support.lane_session import LIBSALUS, SessionProcess
from tests.support.salusd import wait_until

StartSession = Callable[..., SessionProcess]

_NAMES = re.findall(r"^\s+POINT_(\w+),", (LIBSALUS / "point.h").read_text(), re.MULTILINE)
IDLE_POINTS = {"IDLE", "IDLE_ENDED"}
POINTS = {name: number for number, name in enumerate(_NAMES) if name not in {"NONE", "LAST"} | IDLE_POINTS}
BLOCK_BYTES = 200_000


@pytest.fixture
def turning(node: LaneNode, start_session: StartSession) -> Iterator[Turning]:
    """A node with two peers that take turns until the test is over, and then prove that nothing was damaged."""
    # On one CPU a successor reports its start to the daemon, on two a holder its return: victims do both.
    peers = [start_session(node, is_pinned=True) for _ in range(2)]
    for peer in peers:
        peer.send("run_until_signalled", block_bytes=BLOCK_BYTES)
    yield Turning(node, peers)
    for peer in peers:
        peer.process.send_signal(signal.SIGUSR1)
    assert [peer.answer() for peer in peers] == [0, 0]
    last = start_session(node)
    assert last.ask("boundary") == 1
    assert last.ask("take", name="all", size=LANE_MIB * MIB, fill=1)[1], "every byte of the lane is there"
    (lane,) = node.status()["lanes"]
    assert lane["held_bytes"] <= LANE_MIB * MIB


@dataclass
class Turning:
    node: LaneNode
    peers: list[SessionProcess]

    def iteration_counts(self) -> list[int]:
        return [self.node.gate(peer).iteration_count for peer in self.peers]

    def kill_at(self, point: int, nth: int) -> None:
        victim = SessionProcess()
        try:
            if nth % 2:
                victim.ask("pin")
            self.node.join(victim)
            self.node.attach(victim)
            victim.ask("arm_point", point=point, nth=nth)
            victim.send("run_until_signalled", block_bytes=BLOCK_BYTES)
            assert victim.wait_end() == -signal.SIGKILL
        finally:
            victim.close()
        before = self.iteration_counts()
        wait_until(
            lambda: all(now > then + 2 for now, then in zip(self.iteration_counts(), before, strict=True)),
            "both peers go on",
            self.node.story,
        )
        wait_until(lambda: not self.node.session(victim.process.pid), "the daemon sees the death", self.node.story)


@pytest.mark.parametrize("name", POINTS)
def test_the_next_waiter_gets_the_lane_when_a_session_dies(turning: Turning, name: str) -> None:
    for nth in (1, 2):
        turning.kill_at(POINTS[name], nth)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_thousand_kills_lose_nothing(turning: Turning) -> None:
    for kill in range(1000):
        turning.kill_at(list(POINTS.values())[kill % len(POINTS)], 1 + kill // len(POINTS) % 9)


@pytest.mark.parametrize("name", sorted(IDLE_POINTS))
def test_a_death_around_idleness_frees_the_lane(
    start_node: Callable[..., LaneNode], start_session: StartSession, name: str
) -> None:
    node = start_node(config="IdleRelease=4ms")
    victim, waiter = start_session(node), start_session(node)
    victim.ask("arm_point", point=_NAMES.index(name), nth=1)
    victim.ask("enter")
    victim.ask("exit")
    if name == "IDLE_ENDED":
        node.wait_for_state(victim, GateState.IDLE)
        victim.send("enter")
    assert victim.wait_end() == -signal.SIGKILL
    assert waiter.ask("boundary") == 1
