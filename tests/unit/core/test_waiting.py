"""Counts of overtaking: kept as differences, asked for the oldest."""

from __future__ import annotations

from nodedaemon.core.types import SessionId
from nodedaemon.core.waiting import WaitList

A, B, C = SessionId(1), SessionId(2), SessionId(3)


def waiters(*sessions: SessionId) -> WaitList:
    waits = WaitList()
    for session in sessions:
        waits.append(session)
    return waits


def test_nobody_waits_at_first() -> None:
    waits = WaitList()
    waits.overtake_all(3)
    assert (len(waits), waits.oldest, waits.oldest_count) == (0, None, 0)


def test_a_grant_in_order_overtakes_nobody() -> None:
    waits = waiters(A, B)
    waits.remove(A, is_granted=True)
    assert (waits.oldest, waits.oldest_count) == (B, 0)


def test_a_grant_out_of_order_overtakes_all_older_ones() -> None:
    waits = waiters(A, B, C)
    waits.remove(C, is_granted=True)
    assert (waits.oldest, waits.oldest_count) == (A, 1)
    waits.remove(A, is_granted=True)
    assert (waits.oldest, waits.oldest_count) == (B, 1)


def test_a_grant_in_the_middle_overtakes_only_older_ones() -> None:
    waits = waiters(A, B, C)
    waits.remove(B, is_granted=True)
    waits.remove(A, is_granted=True)
    assert (waits.oldest, waits.oldest_count) == (C, 0)


def test_leaving_overtakes_nobody_and_keeps_what_was_counted() -> None:
    waits = waiters(A, B)
    waits.overtake_all(5)
    waits.remove(B, is_granted=False)
    assert (len(waits), waits.oldest, waits.oldest_count) == (1, A, 5)


def test_iterations_of_a_lease_overtake_everybody_who_waits() -> None:
    waits = waiters(A)
    waits.overtake_all(2)
    waits.append(B)
    waits.overtake_all(3)
    assert waits.oldest_count == 5
    waits.remove(A, is_granted=True)
    assert (waits.oldest, waits.oldest_count) == (B, 3)
    waits.remove(B, is_granted=True)
    assert (waits.oldest, waits.oldest_count) == (None, 0)


def test_one_that_waits_again_is_the_youngest_and_starts_from_nothing() -> None:
    waits = waiters(A, B)
    waits.overtake_all(4)
    waits.remove(A, is_granted=True)
    waits.append(A)
    assert (waits.oldest, waits.oldest_count) == (B, 4)
    waits.remove(B, is_granted=True)
    assert (waits.oldest, waits.oldest_count) == (A, 0)
