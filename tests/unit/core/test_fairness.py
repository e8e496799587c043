"""Attained service, weights and decay by example."""

from __future__ import annotations

import pytest

from nodedaemon.core.fairness import ONE_NS, REBASE_DOUBLINGS, ServiceBook, ServiceClock, jain
from nodedaemon.core.types import SessionId

A, B, C = SessionId(1), SessionId(2), SessionId(3)


def test_service_is_wall_time_divided_by_busy_lanes() -> None:
    clock = ServiceClock(0, 0)
    clock.busy_count = 1
    clock.advance(100)
    clock.busy_count = 4
    clock.advance(200)
    assert clock.plain == clock.grown == (100 + 25) * ONE_NS


def test_an_idle_device_gives_no_service() -> None:
    clock = ServiceClock(0, 0)
    clock.advance(100)
    assert (clock.plain, clock.grown, clock.now_ns) == (0, 0, 100)


def test_time_that_runs_backwards_counts_as_no_time() -> None:
    clock = ServiceClock(50, 50)
    clock.busy_count = 1
    clock.advance(20)
    assert (clock.now_ns, clock.plain) == (50, 0)


def test_the_increment_doubles_once_per_half_life() -> None:
    clock = ServiceClock(0, 0, half_life_ns=100)
    grown = []
    for now_ns in (0, 50, 100, 200):
        clock.advance(now_ns)
        grown.append(clock.growth())
    assert grown == [ONE_NS, ONE_NS * 3 // 2, 2 * ONE_NS, 4 * ONE_NS]
    assert clock.doublings() == 2
    assert ServiceClock(0, 0).doublings() == 0


def test_a_rebase_keeps_the_proportions() -> None:
    clock = ServiceClock(0, 0, half_life_ns=10)
    clock.busy_count = 1
    clock.advance(10 * REBASE_DOUBLINGS)
    growth, grown = clock.growth(), clock.grown
    clock.rebase()
    assert clock.growth() == growth >> REBASE_DOUBLINGS == ONE_NS
    assert clock.grown == grown >> REBASE_DOUBLINGS
    assert clock.doublings() == 0


def test_wall_time_of_service_depends_on_sharing_and_growth_and_is_rounded_up() -> None:
    clock = ServiceClock(0, 0, half_life_ns=100)
    assert clock.wall_ns(10 * ONE_NS) == 10
    assert clock.wall_ns(10 * ONE_NS + 1) == 11
    clock.busy_count = 3
    assert clock.wall_ns(10 * ONE_NS) == 30
    clock.advance(100)
    assert clock.wall_ns(10 * ONE_NS) == 15


def test_a_new_session_starts_at_the_minimum_of_the_active_ones() -> None:
    book = ServiceBook()
    assert book.join(A, 0) == 0
    book.update(A, 70)
    assert book.join(B, 0) == 70
    book.update(B, 90)
    assert book.join(C, 0) == 70


def test_a_session_above_the_minimum_keeps_its_service() -> None:
    book = ServiceBook()
    book.join(A, 30)
    assert book.join(B, 80) == 80
    assert book.floor() == 30


def test_an_idle_session_accumulates_no_claim() -> None:
    book = ServiceBook()
    book.join(A, 0)
    book.join(B, 0)
    book.leave(A)
    book.update(B, 500)
    assert book.join(A, 0) == 500


def test_the_floor_stays_without_active_sessions() -> None:
    book = ServiceBook()
    book.join(A, 40)
    book.leave(A)
    assert book.floor() == 40
    assert book.join(B, 0) == 40
    book.leave(C)
    assert book.floor() == 40


def test_outdated_heap_entries_are_dropped_when_they_are_too_many() -> None:
    book = ServiceBook()
    book.join(A, 0)
    for virtual in range(1, 1000):
        book.update(A, virtual)
    assert book.floor() == 999
    assert len(book._heap) <= 4 + 64


def test_a_shift_keeps_the_order() -> None:
    book = ServiceBook()
    book.join(A, 0b1100)
    book.join(B, 0b1000000)
    book.shift(2)
    assert book.floor() == 0b11
    book.leave(A)
    assert book.floor() == 0b10000


@pytest.mark.parametrize(
    ("shares", "index"), [([], 1.0), ([0.0, 0.0], 1.0), ([2.0, 2.0, 2.0], 1.0), ([1.0, 0.0, 0.0, 0.0], 0.25)]
)
def test_jains_index_is_computed_from_shares(shares: list[float], index: float) -> None:
    assert jain(shares) == index
