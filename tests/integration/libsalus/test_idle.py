"""A session that does nothing holds no lane, and asks again when it does something."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from nodedaemon.service.sessions.gate_memory import GateState
from tests.support.lane_node import MIB, LaneNode
from tests.support.lane_session import LIBSALUS, SessionProcess

StartSession = Callable[..., SessionProcess]


@pytest.fixture
def node(start_node: Callable[..., LaneNode]) -> LaneNode:
    return start_node(config="IdleRelease=4ms")


_NAMES = re.findall(r"^\s+POINT_(\w+),", (LIBSALUS / "point.h").read_text(), re.MULTILINE)


def test_an_idle_holder_gives_way_without_a_boundary_and_keeps_its_blocks(
    node: LaneNode, start_session: StartSession
) -> None:
    server, peer = start_session(node), start_session(node)
    assert server.ask("enter") == 1
    server.ask("take", name="kept", size=MIB, fill=5)
    server.ask("exit")
    node.wait_for_state(server, GateState.IDLE)
    assert peer.ask("enter") == 1
    assert node.gate(server).state is GateState.REVOKED
    peer.ask("take", name="all", size=15 * MIB, fill=99)
    assert server.ask("is_filled", name="kept", fill=5)
    server.send("enter")
    node.wait_for_waiter(server)
    peer.ask("leave")
    assert server.answer() == 1
    assert server.ask("is_filled", name="kept", fill=5)


def test_an_idle_holder_that_nobody_disturbs_goes_on_under_its_lease(
    node: LaneNode, start_session: StartSession
) -> None:
    server = start_session(node)
    server.ask("enter")
    server.ask("exit")
    node.wait_for_state(server, GateState.IDLE)
    assert server.ask("enter") == 0
    assert node.gate(server).state is GateState.RUNNING
    assert server.ask("take", name="next", size=MIB, fill=1)[1]


def test_a_long_entry_is_not_idleness(node: LaneNode, start_session: StartSession) -> None:
    busy, other = start_session(node), start_session(node)
    busy.ask("enter")
    other.send("enter")
    node.wait_for_waiter(other)
    # The receiver looks four times in IDLE_NS: far more looks than that pass in these turns of the other process.
    for _ in range(200):
        busy.ask("own_bytes")
    assert node.gate(busy).state is GateState.RUNNING
    busy.ask("exit")
    node.wait_for_state(busy, GateState.IDLE)
    assert other.answer() == 1


def test_who_is_held_up_between_boundary_and_entry_may_lose_its_lease_and_asks_again(
    node: LaneNode, start_session: StartSession
) -> None:
    """In the adaptor the entry point begins after the boundary: the time between the two looks idle."""
    held_up, peer = start_session(node), start_session(node)
    assert held_up.ask("boundary_of_adaptor") == 1
    held_up.send("boundary_of_adaptor", is_held_up=True)
    node.wait_for_state(held_up, GateState.IDLE)
    assert peer.ask("enter") == 1
    assert node.gate(held_up).state is GateState.REVOKED
    held_up.send("go on")
    node.wait_for_waiter(held_up)
    peer.ask("leave")
    assert held_up.answer() == 1
    assert node.gate(held_up).state is GateState.RUNNING


def test_who_passed_the_adaptors_boundary_is_not_idle(node: LaneNode, start_session: StartSession) -> None:
    busy = start_session(node)
    assert busy.ask("boundary_of_adaptor") == 1
    for _ in range(200):
        busy.ask("own_bytes")
    assert node.gate(busy).state is GateState.RUNNING


@pytest.mark.parametrize(("point", "counts"), [("BEFORE_COUNT", (1, 1)), ("COUNT_STORED", (2, 0))])
def test_who_is_held_up_in_a_boundary_of_libsalus_asks_again_and_counts_it_once(
    node: LaneNode, start_session: StartSession, point: str, counts: tuple[int, int]
) -> None:
    """`counts`: iterations of the grant that was taken back, and of the next."""
    held_up, peer = start_session(node), start_session(node)
    assert held_up.ask("boundary_of_adaptor") == 1
    held_up.ask("hold_at", point=_NAMES.index(point))
    held_up.send("follow_boundary")
    node.wait_for_state(held_up, GateState.IDLE)
    assert peer.ask("enter") == 1
    assert node.gate(held_up).state is GateState.REVOKED
    held_up.send("go on")
    node.wait_for_waiter(held_up)
    peer.ask("leave")
    assert held_up.answer() == 1
    seen = node.gate(held_up)
    assert seen.state is GateState.RUNNING
    assert (seen.returned_count, seen.started_count) == counts
    assert held_up.ask("figures")["iteration_count"] == 2


def test_libsalus_passes_a_calm_boundary_alone(node: LaneNode, start_session: StartSession) -> None:
    busy = start_session(node)
    assert busy.ask("boundary_of_adaptor") == 1
    assert busy.ask("follow_boundary") == 0
    assert busy.ask("figures")["iteration_count"] == 2


@pytest.mark.parametrize("is_boundary", [False, True])
def test_an_interrupted_iteration_uses_a_turn_and_is_counted_once(
    node: LaneNode, start_session: StartSession, is_boundary: bool
) -> None:
    server, peer = start_session(node), start_session(node)
    assert server.ask("enter") == 1
    server.ask("exit")
    node.wait_for_state(server, GateState.IDLE)
    assert peer.ask("enter") == 1
    server.send("boundary" if is_boundary else "enter")
    node.wait_for_waiter(server)
    peer.send("boundary")
    assert server.answer() == 1
    assert (node.gate(server).returned_count, node.gate(server).started_count) == (1, int(is_boundary))
    assert server.ask("figures")["iteration_count"] == 1 + is_boundary
    # Its peer waits, so that one turn is all it has.
    server.send("boundary")
    assert peer.answer() == 1
    peer.ask("leave")
    assert server.answer() == 1
    assert node.gate(server).returned_count == int(is_boundary)
    assert server.ask("figures")["iteration_count"] == 2 + is_boundary
