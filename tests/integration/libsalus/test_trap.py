"""StrayAccess=trap: a touch of a lent lane is seen, reported and then treated as the job would have treated it."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.support.lane_node import MIB, LaneNode
from tests.support.lane_session import SessionProcess

TRAP = "StrayAccess=trap"

StartNode = Callable[..., LaneNode]
StartSession = Callable[..., SessionProcess]


def _lend(node: LaneNode, first: SessionProcess, second: SessionProcess) -> int:
    """The lane is with `second`; an address of it at which `first` keeps nothing."""
    first.ask("boundary")
    address, _ = first.ask("take", name="gone", size=4 * MIB, fill=7)
    first.ask("give", name="gone")
    first.ask("take", name="kept", size=100, fill=8)
    second.send("boundary")
    node.wait_for_waiter(second)
    first.ask("boundary_elsewhere")
    assert second.answer() == 1
    return int(address) + 2 * MIB


def test_a_stray_touch_is_reported_and_ends_as_a_fault_does(start_node: StartNode, start_session: StartSession) -> None:
    node = start_node(config=TRAP)
    first, second = start_session(node), start_session(node)
    address = _lend(node, first, second)
    assert first.ask("is_filled", name="kept", fill=8), "a survivor is no stray"
    first.send("peek", address=address)
    assert first.wait_end() == -signal.SIGSEGV
    node.wait_for_log(f"stray access: lent lane: offset 0x{2 * MIB:016x}")


def test_the_jobs_own_handler_still_runs(start_node: StartNode, start_session: StartSession) -> None:
    node = start_node(config=TRAP)
    first = start_session()
    first.ask("enable_faulthandler")
    node.join(first)
    node.attach(first)
    second = start_session(node)
    first.send("peek", address=_lend(node, first, second))
    assert first.wait_end() == -signal.SIGSEGV
    assert first.process.stderr is not None
    assert "Fatal Python error: Segmentation fault" in first.process.stderr.read()


@pytest.mark.parametrize("config", ["", TRAP], ids=["plain", "trap"])
def test_turns_go_on_with_and_without_the_trap(start_node: StartNode, start_session: StartSession, config: str) -> None:
    node = start_node(config=config)
    sessions = [start_session(node) for _ in range(2)]
    for session in sessions:
        session.send("run", count=100, block_bytes=300_000)
    assert [session.answer() for session in sessions] == [0, 0]


def test_without_the_trap_a_stray_touch_reads_a_peers_bytes(node: LaneNode, start_session: StartSession) -> None:
    first, second = start_session(node), start_session(node)
    address = _lend(node, first, second)
    second.ask("take", name="all", size=12 * MIB, fill=99)
    assert first.ask("peek", address=address) == 99
