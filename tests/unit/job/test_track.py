"""A loop that repeats itself is followed without asking the rule, and its boundaries are those that the rule gives."""

from typing import Any

from hypothesis import given
from salus_job.boundary import BoundaryRule
from salus_job.track import MISSES_BEFORE_REST, Track

from tests.support.watched_loop import PHASES, TRAINING, Loop, NoTrack


@given(PHASES)
def test_what_is_told_does_not_depend_on_the_track(
    phases: list[tuple[list[tuple[Any, ...]], int, list[tuple[Any, ...]]]],
) -> None:
    operations = [one for iteration, count, extra in phases for one in [*iteration * count, *extra]]
    assert Loop(Track()).run(operations) == Loop(NoTrack()).run(operations)


def test_a_loop_that_repeats_itself_asks_the_rule_no_more() -> None:
    loop = Loop(Track())
    loop.run(TRAINING * 8)
    loop.watch.rule = None  # type: ignore[assignment]
    assert loop.run(TRAINING * 8).count("boundary") == 15


def test_what_the_rule_missed_is_told_to_it_when_the_loop_changes() -> None:
    loop, control = Loop(Track()), Loop(NoTrack())
    for one in (loop, control):
        one.run(TRAINING * 8)
        one.run([("forward", 1, False, False)])
    assert isinstance(loop.watch.rule, BoundaryRule)
    assert loop.watch.rule.state() == control.watch.rule.state()


def test_a_loop_that_never_repeats_itself_is_left_in_peace() -> None:
    track = Track()
    loop = Loop(track)
    for number in range(4 * MISSES_BEFORE_REST):
        loop.run([("forward", 0, True, True)] * (1 + number % 5) + [("backward",), ("step", 0)])
    assert not track.is_followed
    assert track._rest > 0
