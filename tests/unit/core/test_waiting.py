"""How often the oldest waiter was overtaken, from counts that are stored as differences."""

from __future__ import annotations

from nodedaemon.core.state.waiting import WaitList
from nodedaemon.core.types import SessionId

A, B, C = SessionId(1), SessionId(2), SessionId(3)


def waiters(*sessions: SessionId) -> WaitList:
    waits = WaitList()
    for session in sessions:
        waits.append(session)
    return waits


def check(waits: WaitList, oldest: SessionId | None, oldest_count: int) -> None:
    assert (waits.oldest, waits.oldest_count) == (oldest, oldest_count)


def test_an_empty_list_counts_nothing() -> None:
    waits = WaitList()
    waits.overtake_all(3)
    assert len(waits) == 0
    check(waits, None, 0)


def test_a_grant_in_order_overtakes_no_waiter() -> None:
    waits = waiters(A, B)
    waits.remove(A, is_granted=True)
    check(waits, B, 0)


def test_a_grant_out_of_order_overtakes_all_older_waiters() -> None:
    waits = waiters(A, B, C)
    waits.remove(C, is_granted=True)
    check(waits, A, 1)
    waits.remove(A, is_granted=True)
    check(waits, B, 1)


def test_a_grant_in_the_middle_overtakes_only_older_waiters() -> None:
    waits = waiters(A, B, C)
    waits.remove(B, is_granted=True)
    waits.remove(A, is_granted=True)
    check(waits, C, 0)


def test_a_waiter_that_leaves_overtakes_none_and_keeps_the_counts() -> None:
    waits = waiters(A, B)
    waits.overtake_all(5)
    waits.remove(B, is_granted=False)
    assert len(waits) == 1
    check(waits, A, 5)


def test_iterations_of_a_lease_overtake_every_waiter() -> None:
    waits = waiters(A)
    waits.overtake_all(2)
    waits.append(B)
    waits.overtake_all(3)
    check(waits, A, 5)
    for granted, oldest, oldest_count in ((A, B, 3), (B, None, 0)):
        waits.remove(granted, is_granted=True)
        check(waits, oldest, oldest_count)


def test_a_session_that_waits_again_is_the_youngest_and_starts_at_zero() -> None:
    waits = waiters(A, B)
    waits.overtake_all(4)
    waits.remove(A, is_granted=True)
    waits.append(A)
    check(waits, B, 4)
    waits.remove(B, is_granted=True)
    check(waits, A, 0)
