"""Records which session stayed in which lane and for how long: the rows of the lane chart.

A span is recorded when its session leaves the lane, moves to another one, or when an interval is closed. After an
interval the stay continues in a new span, so a long job appears in the chart before it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from accounting.records import JobKey, LaneSpanRecord, Record
from nodedaemon.core.types import DeviceId, LaneId, SessionId
from nodedaemon.service.node import NodeIdentity


@dataclass(slots=True)
class _Stay:
    job: JobKey
    device: DeviceId
    lane: LaneId
    start_utc_ns: int
    start_mono_ns: int
    iteration_count: int = 0


class LaneSpans:
    def __init__(self, node: NodeIdentity, record: Callable[[Record], None]) -> None:
        self._node = node
        self._record = record
        self._stays: dict[SessionId, _Stay] = {}
        self._lane_bytes: dict[LaneId, int] = {}

    def note_size(self, lane: LaneId, size_bytes: int) -> None:
        """Remember the size of a lane. A parked lane keeps its last size, because its spans were of that size."""
        if size_bytes:
            self._lane_bytes[lane] = size_bytes

    def forget(self, lane: LaneId) -> None:
        """The lane is closed; its number is not used again."""
        self._lane_bytes.pop(lane, None)

    def enter(self, session: SessionId, job: JobKey, device: DeviceId, lane: LaneId, now_ns: int) -> None:
        """The session uses this lane from now on."""
        self.leave(session, now_ns)
        self._stays[session] = _Stay(job, device, lane, self._node.clock.utc_ns(), now_ns)

    def count(self, session: SessionId, iteration_count: int) -> None:
        stay = self._stays.get(session)
        if stay is not None:
            stay.iteration_count += max(0, iteration_count)

    def leave(self, session: SessionId, now_ns: int) -> None:
        """The session is in no lane from now on."""
        stay = self._stays.pop(session, None)
        if stay is None or now_ns <= stay.start_mono_ns:
            return
        self._record(
            LaneSpanRecord(
                job=stay.job,
                node=self._node.name,
                device=stay.device,
                incarnation=self._node.incarnation,
                session=session,
                lane=stay.lane,
                lane_bytes=self._lane_bytes.get(stay.lane, 0),
                start_utc_ns=stay.start_utc_ns,
                start_mono_ns=stay.start_mono_ns,
                span_ns=now_ns - stay.start_mono_ns,
                iteration_count=stay.iteration_count,
            )
        )

    def cut(self, now_ns: int) -> None:
        """Record every stay up to now and continue it in a new span."""
        for session, stay in list(self._stays.items()):
            self.enter(session, stay.job, stay.device, stay.lane, now_ns)
