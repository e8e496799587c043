"""StrayAccess=trap: access to a lane that a peer holds is detected and reported, and then handled as without Salus."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.support.lane_session import MIB, SessionProcess
from tests.support.one_lane import OneLaneDaemon, hand_over

StartDaemon = Callable[..., OneLaneDaemon]
StartSession = Callable[..., SessionProcess]


def _hand_over_empty(daemon: OneLaneDaemon, first: SessionProcess, second: SessionProcess) -> int:
    """Hand the lane from `first` to `second`. Returns an address in it at which `first` keeps nothing."""
    first.ask("boundary")
    address = first.ask("allocate", name="gone", size=4 * MIB, fill=7)["address"]
    first.ask("free", name="gone")
    first.ask("allocate", name="kept", size=100, fill=8)
    hand_over(daemon, first, second)
    return int(address) + 2 * MIB


def test_a_stray_access_is_reported_and_ends_the_process(one_lane: StartDaemon, start_session: StartSession) -> None:
    daemon = one_lane(StrayAccess="trap")
    first, second = start_session(daemon), start_session(daemon, job_class="high")
    number = daemon.session(first.pid)["session"]
    address = _hand_over_empty(daemon, first, second)
    assert first.ask("is_filled", name="kept", fill=8), "access to a survivor is not a stray access"
    first.send("read_byte", address=address)
    assert first.wait_end() == -signal.SIGSEGV
    (fault,) = daemon.wait_faults(number)
    assert fault["what"] == f"stray access: lent lane: offset 0x{2 * MIB:016x}"


def test_the_jobs_own_signal_handler_still_runs(one_lane: StartDaemon, start_session: StartSession) -> None:
    daemon = one_lane(StrayAccess="trap")
    first, second = start_session(), start_session(daemon, job_class="high")
    first.ask("enable_faulthandler")
    first.attach(daemon)
    first.send("read_byte", address=_hand_over_empty(daemon, first, second))
    assert first.wait_end() == -signal.SIGSEGV
    assert first.process.stderr is not None
    assert "Fatal Python error: Segmentation fault" in first.process.stderr.read()


@pytest.mark.parametrize("stray_access", ["off", "trap"])
def test_survivors_are_kept_with_and_without_the_trap(
    one_lane: StartDaemon, start_session: StartSession, stray_access: str
) -> None:
    daemon = one_lane(StrayAccess=stray_access)
    sessions = [start_session(daemon) for _ in range(2)]
    for session in sessions:
        session.send("run", count=100, block_bytes=300_000)
    assert [session.answer() for session in sessions] == [0, 0]


def test_without_the_trap_a_stray_access_reads_the_bytes_of_a_peer(
    one_lane: StartDaemon, start_session: StartSession
) -> None:
    """Negative control."""
    daemon = one_lane(StrayAccess="off")
    first, second = start_session(daemon), start_session(daemon, job_class="high")
    address = _hand_over_empty(daemon, first, second)
    second.ask("allocate", name="all", size=12 * MIB, fill=99)
    assert first.ask("read_byte", address=address) == 99
