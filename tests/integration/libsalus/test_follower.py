"""A loop that repeats itself is followed without asking the rule, and its boundaries are those of the rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from salus_job import binding
from salus_job.boundary import BoundaryRule
from salus_job.follower import MISSES_BEFORE_BACKOFF, LoopFollower

from tests.support.lane_session import LIBSALUS
from tests.support.watched_loop import FUNCTIONAL, PHASES, TRAINING, Operation, Phase, WatchedLoop


@pytest.fixture
def library() -> Iterator[Any]:
    """libsalus without a session, in the state of an uncontended lease."""
    library = binding.load(str(LIBSALUS / "libsalus.so"))
    library.salus_entry_words().contents.is_fast_path = 1
    yield library
    library.salus_entry_words().contents.is_fast_path = 0
    library.salus_follower_state().contents.thread = 0


def boundaries(loop: WatchedLoop, operations: list[Operation]) -> list[int]:
    """The operations at which the session passed a boundary."""
    seen = []
    for number, operation in enumerate(operations):
        count = loop.session.log.count("boundary")
        loop.run([operation])
        seen += [number] * (loop.session.log.count("boundary") - count)
    return seen


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PHASES)
def test_boundaries_and_the_state_of_the_rule_do_not_depend_on_the_follower(library: Any, phases: list[Phase]) -> None:
    operations = [operation for iteration, count, extra in phases for operation in [*iteration * count, *extra]]
    loop, control = WatchedLoop(library), WatchedLoop()
    assert boundaries(loop, operations) == boundaries(control, operations)
    loop.watch._catch_up()
    control.watch._catch_up()
    assert loop.watch.rule.state() == control.watch.rule.state()


@pytest.mark.parametrize("iteration", [TRAINING, FUNCTIONAL], ids=["boundary before an event", "boundary after one"])
def test_a_loop_that_repeats_itself_no_longer_asks_the_rule(library: Any, iteration: list[Operation]) -> None:
    loop = WatchedLoop(library)
    loop.run(iteration * 8)
    assert loop.follower.is_following
    loop.watch.rule = None  # type: ignore[assignment]
    count = loop.session.log.count("boundary")
    assert loop.run(iteration * 8).count("boundary") == count + 8


def test_only_boundaries_of_a_followed_loop_reach_the_session(library: Any) -> None:
    loop = WatchedLoop(library)
    loop.run(TRAINING * 8)
    logged = len(loop.session.log)
    loop.run(TRAINING * 8)
    assert loop.session.log[logged:] == ["boundary"] * 8
    assert library.salus_entry_words().contents.depth == 0


def test_an_entry_reaches_the_session_while_the_gate_is_not_calm(library: Any) -> None:
    loop = WatchedLoop(library)
    loop.run(TRAINING * 8)
    library.salus_entry_words().contents.is_fast_path = 0
    logged = len(loop.session.log)
    loop.run(TRAINING)
    assert loop.session.log[logged:] == ["boundary", "enter"]
    assert loop.follower.is_following


def test_the_rule_gets_the_events_that_it_missed_when_the_loop_changes(library: Any) -> None:
    loop, control = WatchedLoop(library), WatchedLoop()
    for each in (loop, control):
        each.run(TRAINING * 8)
        each.run([("forward", 1, False, False)])
    assert not loop.follower.is_following
    assert isinstance(loop.watch.rule, BoundaryRule)
    assert loop.watch.rule.state() == control.watch.rule.state()


def test_the_follower_pauses_while_a_loop_never_repeats_itself(library: Any) -> None:
    loop = WatchedLoop(library)
    for number in range(4 * MISSES_BEFORE_BACKOFF):
        loop.run([("forward", 0, True, True)] * (1 + number % 5) + [("backward",), ("step", 0)])
    assert not loop.follower.is_following
    assert loop.follower._rest > 0


def test_events_of_another_thread_are_not_expected(library: Any) -> None:
    loop = WatchedLoop(library)
    loop.run(TRAINING * 8)
    library.salus_follower_state().contents.thread = 1
    assert not loop.follower.forward_entered(loop.modules[0], True, True)


def test_no_event_is_expected_after_an_object_is_gone(library: Any) -> None:
    loop = WatchedLoop(library)
    loop.run(TRAINING * 8)
    loop.follower.invalidate()
    assert not loop.follower.forward_entered(loop.modules[0], True, True)


def test_without_libsalus_no_event_is_expected() -> None:
    assert not LoopFollower().forward_entered(object(), True, True)
