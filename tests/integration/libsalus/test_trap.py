"""StrayAccess=trap: a touch of a lent lane is seen, reported and then treated as the job would have treated it."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from nodedaemon.wire.messages import WelcomeFlag
from tests.support.lane_daemon import MIB, LaneDaemon
from tests.support.lane_session import SessionProcess

StartDaemon = Callable[..., LaneDaemon]
StartSession = Callable[..., SessionProcess]


def _lend(daemon: LaneDaemon, first: SessionProcess, second: SessionProcess) -> int:
    """The lane is with `second`; an address of it at which `first` keeps nothing."""
    first.ask("boundary")
    address, _ = first.ask("take", name="gone", size=4 * MIB, fill=7)
    first.ask("give", name="gone")
    first.ask("take", name="kept", size=100, fill=8)
    second.send("boundary")
    daemon.wait_for_waiter(second.process.pid)
    first.ask("boundary_elsewhere")
    assert second.answer() == 1
    return int(address) + 2 * MIB


def test_a_stray_touch_is_reported_and_ends_as_a_fault_does(
    start_daemon: StartDaemon, start_session: StartSession
) -> None:
    daemon = start_daemon(flags=WelcomeFlag.TRAP)
    first, second = start_session(daemon), start_session(daemon)
    address = _lend(daemon, first, second)
    assert first.ask("is_filled", name="kept", fill=8), "a survivor is no stray"
    first.send("peek", address=address)
    assert first.wait_end() == -signal.SIGSEGV
    fault = daemon.wait_until(lambda: daemon.sessions[1].faults, "FAULT")[0]
    assert fault.text == f"stray access: lent lane: offset 0x{2 * MIB:016x}"


def test_the_jobs_own_handler_still_runs(start_daemon: StartDaemon, start_session: StartSession) -> None:
    daemon = start_daemon(flags=WelcomeFlag.TRAP)
    first = start_session()
    first.ask("enable_faulthandler")
    first.ask("hello", path=str(daemon.path))
    second = start_session(daemon)
    first.send("peek", address=_lend(daemon, first, second))
    assert first.wait_end() == -signal.SIGSEGV
    assert first.process.stderr is not None
    assert "Fatal Python error: Segmentation fault" in first.process.stderr.read()


@pytest.mark.parametrize("flags", [0, WelcomeFlag.TRAP], ids=["plain", "trap"])
def test_turns_go_on_with_and_without_the_trap(
    start_daemon: StartDaemon, start_session: StartSession, flags: int
) -> None:
    daemon = start_daemon(flags=flags)
    sessions = [start_session(daemon) for _ in range(2)]
    for session in sessions:
        session.send("run", count=100, block_bytes=300_000)
    assert [session.answer() for session in sessions] == [0, 0]


def test_without_the_trap_a_stray_touch_reads_the_mates_bytes(
    start_daemon: StartDaemon, start_session: StartSession
) -> None:
    daemon = start_daemon()
    first, second = start_session(daemon), start_session(daemon)
    address = _lend(daemon, first, second)
    second.ask("take", name="all", size=12 * MIB, fill=99)
    assert first.ask("peek", address=address) == 99
