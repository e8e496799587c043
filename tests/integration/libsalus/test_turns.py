"""Two real processes take turns in one lane of salusd: survivors keep address and content, whatever a peer writes."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.lane_node import LANE_MIB, MIB, STRANGERS, LaneNode
from tests.support.lane_session import SessionProcess
from tests.support.salusd import wait_until

# SALUS_INTERRUPTIBLE of salus.h.
INTERRUPTIBLE = 0x100
NO_STASH = {"SALUS_TEST_NO_STASH": "1"}

StartNode = Callable[..., LaneNode]
StartSession = Callable[..., SessionProcess]


def _hand_over(first: SessionProcess, second: SessionProcess, node: LaneNode) -> None:
    """`first` holds the lane; afterwards it waits in the gate on another thread and `second` holds."""
    second.send("boundary")
    node.wait_for_waiter(second)
    first.ask("boundary_elsewhere")
    assert second.answer() == 1
    node.wait_for_holder(second)


def test_a_survivor_keeps_bytes_and_address_while_a_peer_fills_the_lane(
    node: LaneNode, start_session: StartSession
) -> None:
    first, second = start_session(node), start_session(node)
    assert first.ask("boundary") == 1
    assert first.ask("take", name="kept", size=MIB + 5, fill=17)[1]
    assert first.ask("take", name="small", size=100, fill=18)[1]
    _hand_over(first, second, node)
    assert second.ask("take", name="all", size=15 * MIB, fill=99)[1]
    assert first.ask("is_filled", name="kept", fill=17), "readable while the lane is lent"
    first.ask("fill", name="kept", fill=21)
    assert second.ask("is_filled", name="all", fill=99), "a write to a survivor does not reach the lane"
    second.ask("give", name="all")
    second.send("leave")
    assert second.answer() == 0
    assert first.ask("join_thread")
    assert first.ask("is_filled", name="kept", fill=21)
    assert first.ask("is_filled", name="small", fill=18)


def test_without_the_stash_a_peer_overwrites_survivors(node: LaneNode, start_session: StartSession) -> None:
    first, second = start_session(node, environment=NO_STASH), start_session(node, environment=NO_STASH)
    first.ask("boundary")
    first.ask("take", name="kept", size=MIB, fill=17)
    _hand_over(first, second, node)
    second.ask("take", name="all", size=8 * MIB, fill=99)
    assert not first.ask("is_filled", name="kept", fill=17)


@pytest.mark.parametrize("is_pinned", [True, False], ids=["one CPU", "any CPU"])
@pytest.mark.parametrize("is_direct", [True, False], ids=["by futex", "by the daemon"])
def test_many_turns_damage_nothing(
    start_node: StartNode, start_session: StartSession, is_direct: bool, is_pinned: bool
) -> None:
    """Sessions of one user start each other; those of several users in one domain are started by the daemon."""
    node = start_node(config="LaneSharing=all")
    users = (0, 0, 0) if is_direct else STRANGERS
    sessions = [start_session(node, is_pinned=is_pinned, uid=uid) for uid in users]
    for session in sessions:
        session.send("run", count=150, block_bytes=300_000)
    assert [session.answer() for session in sessions] == [0, 0, 0]
    rows = wait_until(
        lambda: (
            (rows := [node.session(session.process.pid) for session in sessions])
            and sum(row["iteration_count"] for row in rows) == 3 * 150
            and rows
        ),
        "the daemon has counted every iteration",
        node.story,
    )
    handover_count = sum(row["handover_count"] for row in rows)
    assert handover_count > 20 if is_direct else handover_count == 0


def test_a_survivor_freed_meanwhile_leaves_the_stash(node: LaneNode, start_session: StartSession) -> None:
    first, second = start_session(node), start_session(node)
    first.ask("boundary")
    first.ask("take", name="kept", size=MIB, fill=1)
    _hand_over(first, second, node)
    assert first.ask("figures")["stash_bytes"] == MIB
    first.ask("give", name="kept")
    assert first.ask("figures")["stash_bytes"] == 0


def test_a_block_that_survives_two_boundaries_is_promoted_at_its_address(
    node: LaneNode, start_session: StartSession
) -> None:
    first, second = start_session(node), start_session(node)
    first.ask("boundary")
    address, _ = first.ask("take", name="kept", size=MIB, fill=5)
    first.ask("boundary")
    first.ask("boundary")
    _hand_over(first, second, node)
    figures = first.ask("figures")
    assert (figures["promotion_count"], figures["stash_bytes"], figures["stash_copied_bytes"]) == (1, MIB, MIB)
    second.ask("leave")
    assert first.ask("join_thread")
    _hand_over(first, second, node)
    figures = first.ask("figures")
    assert (figures["promotion_count"], figures["stash_copied_bytes"]) == (1, MIB), "not copied again"
    assert first.ask("peek", address=address) == 5
    second.ask("leave")
    assert first.ask("join_thread")
    first.ask("give", name="kept")
    assert first.ask("take", name="next", size=MIB, fill=6)[0] == address
    first.ask("give", name="next")
    _hand_over(first, second, node)
    assert first.ask("figures")["stash_bytes"] == 0, "its pages are the lane's again"


def _own_mib(session: SessionProcess) -> int:
    return int(session.ask("own_bytes")) // MIB + 1


def test_no_hand_over_while_the_stash_does_not_fit(start_node: StartNode, start_session: StartSession) -> None:
    first = start_session()
    persistent_mib = _own_mib(first) + 6
    node = start_node(memory=f"{persistent_mib + 64 + LANE_MIB}M", config=f"LaneReserve={LANE_MIB}M")
    node.join(first, persistent_mib=persistent_mib)
    node.attach(first)
    first.ask("boundary")
    first.ask("take", name="kept", size=8 * MIB, fill=1)
    second = start_session(node)
    second.send("boundary")
    node.wait_for_waiter(second)
    assert [first.ask("boundary") for _ in range(3)] == [0, 0, 0], "the grant is kept"
    assert node.session(first.process.pid)["state"] != "waiting"
    assert node.session(second.process.pid)["state"] == "waiting"
    assert node.session(first.process.pid)["persistent_bytes"] == persistent_mib * MIB, "no more was allowed"
    first.ask("give", name="kept")
    first.ask("boundary_elsewhere")
    assert second.answer() == 1


def test_the_stash_fits_once_the_daemon_allows_it(node: LaneNode, start_session: StartSession) -> None:
    first = start_session()
    persistent_mib = _own_mib(first) + 6
    node.join(first, persistent_mib=persistent_mib)
    node.attach(first)
    first.ask("boundary")
    first.ask("take", name="kept", size=8 * MIB, fill=1)
    second = start_session(node)
    _hand_over(first, second, node)
    assert first.ask("is_filled", name="kept", fill=1)
    assert node.session(first.process.pid)["persistent_bytes"] > persistent_mib * MIB


@pytest.mark.parametrize("is_allowed", [True, False], ids=["allowed", "denied"])
def test_private_blocks_above_the_limit_need_permission(
    start_node: StartNode, start_session: StartSession, is_allowed: bool
) -> None:
    session = start_session()
    persistent_mib = 48
    memory_mib = persistent_mib + LANE_MIB + (256 if is_allowed else 0)
    node = start_node(memory=f"{memory_mib}M", config=f"LaneReserve={LANE_MIB}M")
    node.join(session, persistent_mib=persistent_mib)
    node.attach(session)
    address, is_lane = session.ask("take", name="own", size=128 * MIB, fill=1)
    assert (bool(address), is_lane) == (is_allowed, False)
    assert (node.session(session.process.pid)["persistent_bytes"] > persistent_mib * MIB) == is_allowed


def test_a_block_too_large_for_the_lane_spills_and_the_daemon_learns_of_it(
    node: LaneNode, start_session: StartSession
) -> None:
    session = start_session(node, lane_mib=2)
    session.ask("boundary")
    assert session.ask("take", name="fits", size=2 * MIB, fill=1)[1]
    address, is_lane = session.ask("take", name="spills", size=MIB, fill=2)
    assert address
    assert not is_lane
    session.ask("boundary")
    pid = session.process.pid
    wait_until(lambda: node.session(pid)["ephemeral_bytes"] >= 3 * MIB, "the daemon allows for the spill", node.story)
    figures = session.ask("figures")
    assert (figures["spill_count"], figures["spill_bytes_max"], figures["ephemeral_bytes"]) == (1, MIB, 2 * MIB)


def test_another_domain_finds_zeroes_and_the_leaver_keeps_no_mapping(
    node: LaneNode, start_session: StartSession
) -> None:
    first, second = (start_session(node, uid=uid) for uid in STRANGERS[:2])
    first.ask("boundary")
    first.ask("take", name="secret", size=4 * MIB, fill=77)
    first.ask("give", name="secret")
    first.ask("take", name="kept", size=MIB, fill=5)
    _hand_over(first, second, node)
    maps = [Path(f"/proc/{session.process.pid}/maps").read_text() for session in (first, second)]
    assert ["memfd:salus-lane" in text for text in maps] == [False, True]
    base, is_lane = second.ask("take", name="fresh", size=64, fill=0)
    assert is_lane
    assert [second.ask("peek", address=base + offset) for offset in (64, 4096, 2 * MIB)] == [0, 0, 0]
    second.ask("leave")
    assert first.ask("join_thread")
    assert first.ask("is_filled", name="kept", fill=5)


def test_a_session_outlives_the_loss_of_its_daemon(node: LaneNode, start_session: StartSession) -> None:
    first, second = start_session(node), start_session(node)
    first.ask("boundary")
    first.ask("take", name="kept", size=MIB, fill=5)
    second.send("boundary")
    node.wait_for_waiter(second)
    node.kill()
    assert first.ask("is_filled", name="kept", fill=5)
    node.start()
    first.ask("boundary_elsewhere")
    assert second.answer() == 1
    assert first.ask("is_filled", name="kept", fill=5)


def test_a_refused_session_goes_on_without_salus(start_node: StartNode, start_session: StartSession) -> None:
    node = start_node(config="LocalJobs=no")
    session = start_session()
    answer, reason, *_ = session.ask("hello", path=str(node.socket))
    assert answer == -errno.EACCES
    assert "refused" in reason
    assert session.ask("boundary") == -errno.ENOTCONN
    assert session.ask("take", name="plain", size=MIB, fill=1)[1] is False


def test_switched_off_the_job_keeps_its_blocks_and_the_daemon_learns_why(
    node: LaneNode, start_session: StartSession
) -> None:
    first, second = start_session(node), start_session(node)
    first.ask("boundary")
    first.ask("take", name="kept", size=MIB, fill=5)
    assert first.ask("off", text="the adaptor lost its way") == 0
    node.wait_for_log("the adaptor lost its way", "is_off")
    assert second.ask("boundary") == 1
    second.ask("take", name="all", size=15 * MIB, fill=99)
    assert first.ask("is_filled", name="kept", fill=5)
    assert first.ask("boundary") == -errno.ENOTCONN
    assert first.ask("take", name="plain", size=MIB, fill=1)[1] is False


def test_the_switch_in_the_environment_keeps_everything_off(node: LaneNode, start_session: StartSession) -> None:
    session = start_session(environment={"SALUS_DISABLE": "1"})
    assert session.ask("hello", path=str(node.socket))[0] == -errno.ECANCELED
    assert node.sessions() == {}


def test_an_ungated_session_is_measured_like_a_lane_and_never_waits(
    node: LaneNode, start_session: StartSession
) -> None:
    session = start_session(node, lane_mib=0)
    assert session.ask("boundary") == 0
    for name in ("a", "b"):
        assert session.ask("take", name=name, size=MIB, fill=1)[1]
    session.ask("give", name="a")
    session.ask("take", name="c", size=MIB, fill=2)
    assert session.ask("figures")["ephemeral_bytes"] == 2 * MIB
    row = node.session(session.process.pid)
    assert (row["is_gated"], row["waited_ns"]) == (False, 0)


def test_a_signal_is_seen_while_waiting_and_the_session_still_waits_in_the_gate(
    node: LaneNode, start_session: StartSession
) -> None:
    first, second = start_session(node), start_session(node, flags=INTERRUPTIBLE)
    second.ask("watch_signal")
    first.ask("boundary")
    second.send("boundary")
    node.wait_for_waiter(second)
    second.process.send_signal(signal.SIGUSR1)
    assert second.answer() == -errno.EINTR
    second.send("boundary")
    first.ask("leave")
    assert second.answer() == 1
    assert node.session(second.process.pid)["state"] == "running"


def test_a_signal_that_came_before_the_sleep_is_seen_at_the_next_nudge(
    node: LaneNode, start_session: StartSession
) -> None:
    first, second = start_session(node), start_session(node, flags=INTERRUPTIBLE)
    first.ask("boundary")
    # Nothing interrupts the sleep, as when the handler ran before it: the wait must come back by itself.
    assert second.ask("boundary") == -errno.EINTR
    second.send("boundary")
    first.ask("leave")
    assert second.answer() in (1, -errno.EINTR)
