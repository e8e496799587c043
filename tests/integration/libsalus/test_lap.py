"""What libsalus sees of a loop that repeats itself is what the rule would have seen, event by event."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from salus_job import binding, lap
from salus_job.track import Track

from tests.support.lane_session import LIBSALUS
from tests.support.watched_loop import PHASES, TRAINING, Loop, NoTrack


@pytest.fixture
def library() -> Iterator[Any]:
    """libsalus without a session: as if a grant were held and nobody asked for it."""
    library = binding.load(str(LIBSALUS / "libsalus.so"))
    library.salus_entry_words().contents.is_calm = 1
    yield library
    library.salus_entry_words().contents.is_calm = 0
    library.salus_lap_words().contents.thread = 0


def followed(library: Any) -> Loop:
    """Boundaries are left to the watch: a report is always due."""
    return Loop(Track(library.salus_lap_words().contents), lap.make(library))


def boundaries(loop: Loop, operations: list[tuple[Any, ...]]) -> list[int]:
    """At which operations the session was told of a boundary."""
    seen = []
    for number, operation in enumerate(operations):
        count = loop.session.log.count("boundary")
        loop.run([operation])
        seen += [number] * (loop.session.log.count("boundary") - count)
    return seen


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PHASES)
def test_boundaries_do_not_depend_on_who_follows(
    library: Any, phases: list[tuple[list[tuple[Any, ...]], int, list[tuple[Any, ...]]]]
) -> None:
    operations = [one for iteration, count, extra in phases for one in [*iteration * count, *extra]]
    loop, control = followed(library), Loop(NoTrack())
    assert boundaries(loop, operations) == boundaries(control, operations)
    for one in (loop, control):
        one.watch._catch_up()
    assert loop.watch.rule.state() == control.watch.rule.state()


def test_expected_events_do_not_reach_the_watch(library: Any) -> None:
    loop = followed(library)
    loop.run(TRAINING * 8)
    told = len(loop.session.log)
    loop.run(TRAINING * 8)
    assert loop.session.log[told:] == ["boundary"] * 8
    assert library.salus_entry_words().contents.depth == 0


def test_an_unexpected_event_reaches_it(library: Any) -> None:
    loop = followed(library)
    loop.run(TRAINING * 8)
    assert loop.watch._track.is_followed
    loop.run([("forward", 1, True, True)])
    assert not loop.watch._track.is_followed


def test_an_entry_reaches_it_where_the_gate_is_not_calm(library: Any) -> None:
    loop = followed(library)
    loop.run(TRAINING * 8)
    library.salus_entry_words().contents.is_calm = 0
    told = len(loop.session.log)
    loop.run(TRAINING)
    assert loop.session.log[told:] == ["boundary", "enter"]
    assert loop.watch._track.is_followed


def test_another_thread_is_not_followed(library: Any) -> None:
    loop = followed(library)
    loop.run(TRAINING * 8)
    library.salus_lap_words().contents.thread = 1
    assert not loop.followers.forward(loop.modules[0], True, True)
    assert not lap.Followers().forward(loop.modules[0], True, True)


def test_no_event_is_expected_once_an_object_is_gone(library: Any) -> None:
    loop = followed(library)
    loop.run(TRAINING * 8)
    loop.watch._track.spoil()
    assert not loop.followers.forward(loop.modules[0], True, True)
