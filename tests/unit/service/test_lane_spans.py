"""A stay in a lane is recorded when the session moves or leaves, and whenever an interval is closed."""

from __future__ import annotations

from accounting.records import JobKey, LaneSpanRecord
from nodedaemon.service.node import NodeClock, NodeIdentity
from nodedaemon.service.usage.lane_spans import LaneSpans

JOB = JobKey(cluster="alpha", job_id=7)


def spans_of(records: list[object]) -> list[tuple[int, int, int, int]]:
    assert all(isinstance(record, LaneSpanRecord) for record in records)
    return [(one.lane, one.start_mono_ns, one.span_ns, one.iteration_count) for one in records]  # type: ignore[attr-defined]


def make() -> tuple[LaneSpans, list[object]]:
    records: list[object] = []
    node = NodeIdentity("node1", "alpha", "1", "boot", "first", NodeClock(utc_ns=lambda: 1_000_000))
    return LaneSpans(node, records.append), records


def test_a_move_ends_one_stay_and_begins_the_next() -> None:
    spans, records = make()
    spans.enter(1, JOB, "gpu0", 3, 100)
    spans.count(1, 5)
    spans.enter(1, JOB, "gpu0", 4, 250)
    spans.leave(1, 300)
    assert spans_of(records) == [(3, 100, 150, 5), (4, 250, 50, 0)]


def test_closing_an_interval_records_the_stay_so_far_and_loses_no_time() -> None:
    spans, records = make()
    spans.note_size(3, 64)
    spans.enter(1, JOB, "gpu0", 3, 0)
    spans.cut(10)
    spans.cut(25)
    spans.leave(1, 30)
    assert spans_of(records) == [(3, 0, 10, 0), (3, 10, 15, 0), (3, 25, 5, 0)]
    assert [one.lane_bytes for one in records] == [64, 64, 64]  # type: ignore[attr-defined]


def test_a_session_without_a_lane_has_no_span() -> None:
    spans, records = make()
    spans.count(1, 5)
    spans.leave(1, 10)
    spans.enter(2, JOB, "gpu0", 1, 10)
    spans.leave(2, 10)
    assert records == []


def test_the_size_of_a_closed_lane_is_forgotten() -> None:
    spans, records = make()
    spans.note_size(3, 64)
    spans.enter(1, JOB, "gpu0", 3, 0)
    spans.leave(1, 10)
    spans.forget(3)
    spans.enter(2, JOB, "gpu0", 3, 20)
    spans.leave(2, 30)
    assert [one.lane_bytes for one in records] == [64, 0]  # type: ignore[attr-defined]
