"""A session that does nothing holds no lane, and asks again when it does something."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.support.gate_pages import GateState
from tests.support.lane_daemon import MIB, LaneDaemon
from tests.support.lane_session import LIBSALUS, SessionProcess

StartDaemon = Callable[..., LaneDaemon]
StartSession = Callable[..., SessionProcess]

IDLE_NS = 4_000_000
_NAMES = re.findall(r"^\s+POINT_(\w+),", (LIBSALUS / "point.h").read_text(), re.MULTILINE)


def test_an_idle_holder_gives_way_without_a_boundary_and_keeps_its_blocks(
    start_daemon: StartDaemon, start_session: StartSession
) -> None:
    daemon = start_daemon(idle_release_ns=IDLE_NS)
    server, peer = start_session(daemon), start_session(daemon)
    assert server.ask("enter") == 1
    server.ask("take", name="kept", size=MIB, fill=5)
    server.ask("exit")
    daemon.wait_until(lambda: daemon.sessions[1].page.read().state is GateState.IDLE, "the server is idle")
    assert peer.ask("enter") == 1
    assert daemon.sessions[1].page.read().state is GateState.REVOKED
    peer.ask("take", name="all", size=15 * MIB, fill=99)
    assert server.ask("is_filled", name="kept", fill=5)
    server.send("enter")
    daemon.wait_for_waiter(server.process.pid)
    peer.ask("leave")
    assert server.answer() == 1
    assert server.ask("is_filled", name="kept", fill=5)


def test_an_idle_holder_that_nobody_disturbs_goes_on_under_its_lease(
    start_daemon: StartDaemon, start_session: StartSession
) -> None:
    daemon = start_daemon(idle_release_ns=IDLE_NS)
    server = start_session(daemon)
    server.ask("enter")
    server.ask("exit")
    daemon.wait_until(lambda: daemon.sessions[1].page.read().state is GateState.IDLE, "the server is idle")
    assert server.ask("enter") == 0
    assert daemon.sessions[1].page.read().state is GateState.RUNNING
    assert len(daemon.grants) == 1
    assert server.ask("take", name="next", size=MIB, fill=1)[1]


def test_a_long_entry_is_not_idleness(start_daemon: StartDaemon, start_session: StartSession) -> None:
    daemon = start_daemon(idle_release_ns=IDLE_NS)
    busy, other = start_session(daemon), start_session(daemon)
    busy.ask("enter")
    other.send("enter")
    daemon.wait_for_waiter(other.process.pid)
    # The receiver looks four times in IDLE_NS: far more looks than that pass in these turns of the other process.
    for _ in range(200):
        busy.ask("own_bytes")
    assert daemon.sessions[1].page.read().state is GateState.RUNNING
    busy.ask("exit")
    daemon.wait_until(lambda: daemon.sessions[1].page.read().state is GateState.IDLE, "idle once the entry is over")
    daemon.call(daemon.schedule)
    assert other.answer() == 1


def test_who_is_held_up_between_boundary_and_entry_may_lose_its_lease_and_asks_again(
    start_daemon: StartDaemon, start_session: StartSession
) -> None:
    """In the adaptor the entry point begins after the boundary: the time between the two looks idle."""
    daemon = start_daemon(idle_release_ns=IDLE_NS)
    held_up, peer = start_session(daemon), start_session(daemon)
    assert held_up.ask("boundary_of_adaptor") == 1
    held_up.send("boundary_of_adaptor", is_held_up=True)
    daemon.wait_until(lambda: daemon.sessions[1].page.read().state is GateState.IDLE, "it looks idle")
    assert peer.ask("enter") == 1
    assert daemon.sessions[1].page.read().state is GateState.REVOKED
    held_up.send("go on")
    daemon.wait_for_waiter(held_up.process.pid)
    peer.ask("leave")
    assert held_up.answer() == 1
    assert daemon.sessions[1].page.read().state is GateState.RUNNING


def test_who_passed_the_adaptors_boundary_is_not_idle(start_daemon: StartDaemon, start_session: StartSession) -> None:
    daemon = start_daemon(idle_release_ns=IDLE_NS)
    busy = start_session(daemon)
    assert busy.ask("boundary_of_adaptor") == 1
    for _ in range(200):
        busy.ask("own_bytes")
    assert daemon.sessions[1].page.read().state is GateState.RUNNING


@pytest.mark.parametrize(("point", "counts"), [("BEFORE_COUNT", (1, 1)), ("COUNT_STORED", (2, 0))])
def test_who_is_held_up_in_a_boundary_of_libsalus_asks_again_and_counts_it_once(
    start_daemon: StartDaemon, start_session: StartSession, point: str, counts: tuple[int, int]
) -> None:
    """`counts`: iterations of the grant that was taken back, and of the next."""
    daemon = start_daemon(idle_release_ns=IDLE_NS)
    held_up, peer = start_session(daemon), start_session(daemon)
    assert held_up.ask("boundary_of_adaptor") == 1
    held_up.ask("hold_at", point=_NAMES.index(point))
    held_up.send("follow_boundary")
    page = daemon.sessions[1].page
    daemon.wait_until(lambda: page.read().state is GateState.IDLE, "it looks idle")
    assert peer.ask("enter") == 1
    assert page.read().state is GateState.REVOKED
    held_up.send("go on")
    daemon.wait_for_waiter(held_up.process.pid)
    peer.ask("leave")
    assert held_up.answer() == 1
    seen = page.read()
    assert seen.state is GateState.RUNNING
    assert (seen.returned_count, seen.started_count) == counts
    assert held_up.ask("figures")["iteration_count"] == 2


def test_libsalus_passes_a_calm_boundary_alone(start_daemon: StartDaemon, start_session: StartSession) -> None:
    daemon = start_daemon(idle_release_ns=IDLE_NS)
    busy = start_session(daemon)
    assert busy.ask("boundary_of_adaptor") == 1
    assert busy.ask("follow_boundary") == 0
    assert busy.ask("figures")["iteration_count"] == 2


@pytest.mark.parametrize("is_boundary", [False, True])
def test_an_interrupted_iteration_uses_a_turn_and_is_counted_once(
    start_daemon: StartDaemon, start_session: StartSession, is_boundary: bool
) -> None:
    daemon = start_daemon(idle_release_ns=IDLE_NS)
    server, peer = start_session(daemon), start_session(daemon)
    assert server.ask("enter") == 1
    server.ask("exit")
    page = daemon.sessions[1].page
    daemon.wait_until(lambda: page.read().state is GateState.IDLE, "the server is idle")
    assert peer.ask("enter") == 1
    server.send("boundary" if is_boundary else "enter")
    daemon.wait_for_waiter(server.process.pid)
    peer.send("boundary")
    assert server.answer() == 1
    assert (page.read().returned_count, page.read().started_count) == (1, int(is_boundary))
    assert server.ask("figures")["iteration_count"] == 1 + is_boundary
    # Its peer waits, so that one turn is all it has.
    server.send("boundary")
    assert peer.answer() == 1
    peer.ask("leave")
    assert server.answer() == 1
    assert page.read().returned_count == int(is_boundary)
    assert server.ask("figures")["iteration_count"] == 2 + is_boundary
