"""Processes take turns in one lane. The blocks that a process keeps stay unchanged and at their addresses."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from nodedaemon.core.events import GrantReturned, GrantWanted, SessionOverran
from tests.support.lane_session import MIB, POINTS, SessionProcess
from tests.support.one_lane import OneLaneDaemon, Peers, hand_over
from tests.support.salusd import wait_until

# SALUS_INTERRUPTIBLE of salus.h.
INTERRUPTIBLE = 0x100
#: Every account is a domain of its own, and lanes change their domain as soon as the policy allows it.
DOMAINS = {"LaneSharing": "account", "DomainQuantum": "0"}

StartDaemon = Callable[..., OneLaneDaemon]
StartSession = Callable[..., SessionProcess]


def test_a_survivor_keeps_its_bytes_and_address_while_a_peer_fills_the_lane(
    one_lane: StartDaemon, start_session: StartSession
) -> None:
    daemon = one_lane()
    first, second = start_session(daemon), start_session(daemon, job_class="high")
    assert first.ask("boundary") == 1
    assert first.ask("allocate", name="kept", size=MIB + 5, fill=17)["is_lane"]
    assert first.ask("allocate", name="small", size=100, fill=18)["is_lane"]
    hand_over(daemon, first, second)
    assert second.ask("allocate", name="all", size=15 * MIB, fill=99)["is_lane"]
    assert first.ask("is_filled", name="kept", fill=17), "a survivor is readable while the peer holds the lane"
    first.ask("fill", name="kept", fill=21)
    assert second.ask("is_filled", name="all", fill=99), "a write to a survivor does not reach the lane"
    second.ask("free", name="all")
    assert second.ask("leave") == 0
    assert first.ask("join_thread")
    assert first.ask("is_filled", name="kept", fill=21)
    assert first.ask("is_filled", name="small", fill=18)


def test_without_the_stash_a_peer_overwrites_what_survived(one_lane: StartDaemon, start_session: StartSession) -> None:
    """Negative control."""
    daemon = one_lane()
    first, second = start_session(daemon, SALUS_TEST_NO_STASH="1"), start_session(daemon, job_class="high")
    first.ask("boundary")
    first.ask("allocate", name="kept", size=MIB, fill=17)
    hand_over(daemon, first, second)
    second.ask("allocate", name="all", size=8 * MIB, fill=99)
    assert not first.ask("is_filled", name="kept", fill=17)


@pytest.mark.parametrize("is_pinned", [True, False], ids=["one CPU", "any CPU"])
@pytest.mark.parametrize("accounts", [("a", "a", "a"), ("a", "b", "c")], ids=["one domain", "a domain each"])
def test_many_turns_damage_nothing_and_every_iteration_counts_once(
    one_lane: StartDaemon, start_session: StartSession, accounts: tuple[str, ...], is_pinned: bool
) -> None:
    """In one domain sessions start each other; between domains the daemon takes the lane back and grants it."""
    daemon = one_lane(**DOMAINS)
    is_direct = len(set(accounts)) == 1
    sessions = [start_session(daemon, is_pinned=is_pinned, account=account) for account in accounts]
    numbers = [daemon.session(session.pid)["session"] for session in sessions]
    for session in sessions:
        session.send("run_until_signal", block_bytes=300_000)
    handed_over_min, return_count_min = (100, 100) if is_direct else (0, 30)

    def have_taken_turns() -> bool:
        returns = [event for number in numbers for event in daemon.events(GrantReturned, number)]
        handed_over_count = sum(event.handed_over is not None for event in returns)
        return len(returns) >= return_count_min and handed_over_count >= handed_over_min

    wait_until(have_taken_turns, "the sessions take turns", daemon.describe)
    for session in sessions:
        session.process.send_signal(signal.SIGUSR1)
    assert [session.answer() for session in sessions] == [0, 0, 0]
    assert is_direct == any(daemon.session(session.pid)["handover_count"] for session in sessions)
    if is_direct and is_pinned:
        reported_count = sum(session.ask("point_passed_count", point=POINTS["STARTED_SENT"]) for session in sessions)
        assert reported_count > 20, "successors report the hand-over"
    for session in sessions:
        count = session.ask("counters")["iteration_count"]
        wait_until(
            lambda pid=session.pid, count=count: daemon.session(pid)["iteration_count"] == count,
            f"the daemon has counted {count} iterations",
            daemon.describe,
        )


def test_a_survivor_that_is_freed_while_a_peer_runs_leaves_the_stash(lent: Peers) -> None:
    _, first, _ = lent
    assert first.ask("counters")["stash_bytes"] == MIB
    first.ask("free", name="kept")
    assert first.ask("counters")["stash_bytes"] == 0


def test_a_block_that_survives_two_boundaries_is_promoted_at_its_address(
    one_lane: StartDaemon, start_session: StartSession
) -> None:
    daemon = one_lane()
    first, second = start_session(daemon), start_session(daemon, job_class="high")
    first.ask("boundary")
    address = first.ask("allocate", name="kept", size=MIB, fill=5)["address"]
    first.ask("boundary")
    first.ask("boundary")
    hand_over(daemon, first, second)
    counters = first.ask("counters")
    assert (counters["promotion_count"], counters["stash_bytes"], counters["stash_copied_bytes"]) == (1, MIB, MIB)
    second.ask("leave")
    assert first.ask("join_thread")
    hand_over(daemon, first, second)
    counters = first.ask("counters")
    assert (counters["promotion_count"], counters["stash_copied_bytes"]) == (1, MIB), "it is not copied again"
    assert first.ask("read_byte", address=address) == 5
    second.ask("leave")
    assert first.ask("join_thread")
    first.ask("free", name="kept")
    assert first.ask("allocate", name="next", size=MIB, fill=6)["address"] == address
    first.ask("free", name="next")
    hand_over(daemon, first, second)
    assert first.ask("counters")["stash_bytes"] == 0, "its pages belong to the lane again"


def _attach_with_spare(daemon: OneLaneDaemon, session: SessionProcess, spare_bytes: int) -> int:
    """Attach the process with little more memory than it uses now. Returns the number of its session."""
    session.attach(daemon, persistent_bytes=session.ask("own_bytes") + spare_bytes)
    return int(daemon.session(session.pid)["session"])


def _fill_device(daemon: OneLaneDaemon, start_session: StartSession) -> None:
    """A job occupies all memory that is free."""
    (device,) = daemon.status()["devices"]
    start_session().attach(daemon, persistent_bytes=device["free_bytes"], ephemeral_bytes=0)


@pytest.mark.parametrize("is_full", [False, True], ids=["free memory", "full device"])
def test_a_holder_hands_over_only_if_there_is_memory_for_its_survivors(
    one_lane: StartDaemon, start_session: StartSession, is_full: bool
) -> None:
    daemon = one_lane()
    first, second = start_session(), start_session(daemon, job_class="high")
    number = _attach_with_spare(daemon, first, 6 * MIB)
    first.ask("boundary")
    first.ask("allocate", name="kept", size=12 * MIB, fill=1)
    if is_full:
        _fill_device(daemon, start_session)
        second.send("boundary")
        daemon.wait_state(first.pid, "revoked")
        assert first.ask("boundary") == 0, "it keeps the grant"
        assert daemon.lane()["holder"] == number
        first.ask("free", name="kept")
        first.ask("boundary_in_thread")
        assert second.answer() == 1
    else:
        hand_over(daemon, first, second)
        assert first.ask("is_filled", name="kept", fill=1)
    (overrun,) = daemon.events(SessionOverran, number)
    assert overrun.persistent_bytes > daemon.session(first.pid)["persistent_bytes"] or not is_full


@pytest.mark.parametrize("is_full", [False, True], ids=["free memory", "full device"])
def test_private_blocks_above_the_cap_need_free_memory(
    one_lane: StartDaemon, start_session: StartSession, is_full: bool
) -> None:
    daemon = one_lane()
    session = start_session()
    number = _attach_with_spare(daemon, session, 16 * MIB)
    if is_full:
        _fill_device(daemon, start_session)
    block = session.ask("allocate", name="own", size=64 * MIB, fill=1)
    assert (bool(block["address"]), block["is_lane"]) == (not is_full, False)
    (overrun,) = daemon.events(SessionOverran, number)
    assert overrun.persistent_bytes > 64 * MIB


def test_a_block_that_is_too_large_for_the_lane_spills_and_is_reported(
    one_lane: StartDaemon, start_session: StartSession
) -> None:
    daemon = one_lane()
    session = start_session()
    session.attach(daemon, ephemeral_bytes=2 * MIB)
    session.ask("boundary")
    assert session.ask("allocate", name="fits", size=2 * MIB, fill=1)["is_lane"]
    block = session.ask("allocate", name="spills", size=MIB, fill=2)
    assert block["address"]
    assert not block["is_lane"]
    session.ask("boundary")
    number = daemon.session(session.pid)["session"]
    (overrun,) = wait_until(lambda: daemon.events(SessionOverran, number), "an overrun is reported", daemon.describe)
    assert overrun.ephemeral_bytes == 3 * MIB
    counters = session.ask("counters")
    assert (counters["spill_count"], counters["spill_bytes_max"], counters["ephemeral_bytes"]) == (1, MIB, 2 * MIB)


def test_another_domain_finds_zeroes_and_the_previous_one_keeps_no_mapping(
    one_lane: StartDaemon, start_session: StartSession
) -> None:
    daemon = one_lane(**DOMAINS)
    first, second = start_session(daemon, account="a"), start_session(daemon, account="b", job_class="high")
    first.ask("boundary")
    first.ask("allocate", name="secret", size=4 * MIB, fill=77)
    first.ask("free", name="secret")
    first.ask("allocate", name="kept", size=MIB, fill=5)
    hand_over(daemon, first, second)
    maps = [Path(f"/proc/{session.pid}/maps").read_text() for session in (first, second)]
    assert ["memfd:salus-lane" in text for text in maps] == [False, True]
    block = second.ask("allocate", name="fresh", size=64, fill=0)
    assert block["is_lane"]
    addresses = [block["address"] + offset for offset in (64, 4096, 2 * MIB)]
    assert [second.ask("read_byte", address=address) for address in addresses] == [0, 0, 0]
    second.ask("leave")
    assert first.ask("join_thread")
    assert first.ask("is_filled", name="kept", fill=5)


def test_a_session_outlives_the_loss_of_its_daemon(one_lane: StartDaemon, start_session: StartSession) -> None:
    daemon = one_lane()
    first, second = start_session(daemon), start_session(daemon, job_class="high")
    first.ask("boundary")
    first.ask("allocate", name="kept", size=MIB, fill=5)
    second.send("boundary")
    daemon.wait_state(first.pid, "revoked")
    daemon.kill()
    assert first.ask("is_filled", name="kept", fill=5)
    daemon.start()
    first.ask("boundary_in_thread")
    assert second.answer() == 1
    assert first.ask("is_filled", name="kept", fill=5)


def test_salusd_handles_the_bye_of_a_session_that_it_can_no_longer_reach(
    one_lane: StartDaemon, start_session: StartSession
) -> None:
    """While it handles RETURN, salusd asks the session to unmap the lane, but the connection is already closed."""
    daemon = one_lane(**DOMAINS)
    first, second = start_session(daemon, account="a"), start_session(daemon, account="b", job_class="high")
    number = daemon.session(first.pid)["session"]
    first.ask("boundary")
    second.send("boundary")
    daemon.wait_state(first.pid, "revoked")
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGSTOP)
    assert first.ask("bye") == 0
    daemon.process.send_signal(signal.SIGCONT)
    assert second.answer() == 1
    assert daemon.end_reason(number) == "finished"


def _runs_without_salus(session: SessionProcess) -> bool:
    block = session.ask("allocate", name="plain", size=MIB, fill=1)
    return session.ask("boundary") == -errno.ENOTCONN and block["address"] and not block["is_lane"]


def test_a_refused_session_continues_without_salus(one_lane: StartDaemon, start_session: StartSession) -> None:
    daemon = one_lane(LocalJobs="no")
    session = start_session()
    answer = session.ask("hello", socket=str(daemon.socket))
    assert answer["error"] == -errno.EACCES
    assert answer["reason"].endswith("it belongs to no Slurm job on this node")
    assert _runs_without_salus(session)


def test_a_job_that_switches_salus_off_keeps_its_blocks_and_the_daemon_logs_why(
    one_lane: StartDaemon, start_session: StartSession
) -> None:
    daemon = one_lane()
    first, second = start_session(daemon), start_session(daemon, job_class="high")
    number = daemon.session(first.pid)["session"]
    first.ask("boundary")
    first.ask("allocate", name="kept", size=MIB, fill=5)
    assert first.ask("off", text="the adaptor failed") == 0
    (fault,) = daemon.wait_faults(number)
    assert (fault["is_off"], fault["what"]) == (True, "the adaptor failed")
    assert second.ask("boundary") == 1
    second.ask("allocate", name="all", size=15 * MIB, fill=99)
    assert first.ask("is_filled", name="kept", fill=5)
    assert _runs_without_salus(first)


def test_salus_disable_in_the_environment_prevents_a_session(
    one_lane: StartDaemon, start_session: StartSession
) -> None:
    daemon = one_lane()
    session = start_session(SALUS_DISABLE="1")
    assert session.ask("hello", socket=str(daemon.socket))["error"] == -errno.ECANCELED
    assert not daemon.session(session.pid)


def test_an_ungated_session_is_measured_like_a_lane_and_never_waits(
    one_lane: StartDaemon, start_session: StartSession
) -> None:
    daemon = one_lane()
    session = start_session()
    # Nobody has measured this job, so it gets the whole device.
    session.attach(daemon, persistent_bytes=0, ephemeral_bytes=0)
    assert session.ask("boundary") == 0
    for name in ("a", "b"):
        assert session.ask("allocate", name=name, size=MIB, fill=1)["is_lane"]
    session.ask("free", name="a")
    session.ask("allocate", name="c", size=MIB, fill=2)
    assert session.ask("counters")["ephemeral_bytes"] == 2 * MIB
    assert daemon.session(session.pid)["state"] == "ungated"


@pytest.fixture
def waiting(one_lane: StartDaemon, start_session: StartSession) -> Peers:
    """A daemon, a session that holds the lane, and another one that waits for it and notices signals."""
    daemon = one_lane()
    holder, waiter = start_session(daemon), start_session()
    waiter.attach(daemon, flags=INTERRUPTIBLE)
    waiter.ask("handle_signal")
    holder.ask("boundary")
    waiter.send("boundary")
    daemon.wait_state(waiter.pid, "waiting")
    return daemon, holder, waiter


def test_a_signal_interrupts_the_wait_and_the_place_in_the_gate_is_kept(waiting: Peers) -> None:
    daemon, holder, waiter = waiting
    waiter.process.send_signal(signal.SIGUSR1)
    assert waiter.answer() == -errno.EINTR
    waiter.send("boundary")
    holder.ask("leave")
    assert waiter.answer() == 1
    assert len(daemon.events(GrantWanted, daemon.session(waiter.pid)["session"])) == 1


def test_a_wait_ends_by_itself_for_a_signal_that_came_before_it(waiting: Peers) -> None:
    """Nothing interrupts the wait here, as if the signal's handler had run before it."""
    _, holder, waiter = waiting
    assert waiter.answer() == -errno.EINTR
    waiter.send("boundary")
    holder.ask("leave")
    assert waiter.answer() in (1, -errno.EINTR)
