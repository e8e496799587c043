"""Facts about devices and sessions, written once: usage, device usage, lane spans, sessions, events.

An interval is never changed after it was written, so its insert ignores a key that is there. Only sessions grow, from
hello to bye, and are merged.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import astuple
from sqlalchemy import Connection, update

from accounting.records import (
    DETAIL_LENGTH_MAX,
    DeviceUsageRecord,
    EventRecord,
    JobKey,
    LaneSpanRecord,
    SessionRecord,
    UsageRecord,
    clean_text,
)
from accounting.storage.catalog import CHUNK, Places, Row, table_of
from accounting.storage.database import insert_rows, select_rows
from accounting.storage.models import DeviceUsageRow, EventRow, LaneSpanRow, SessionRow, UsageRow

USAGE, DEVICE_USAGE = table_of(UsageRow), table_of(DeviceUsageRow)
LANE_SPANS, SESSIONS, EVENTS = table_of(LaneSpanRow), table_of(SessionRow), table_of(EventRow)

USAGE_NAMES = tuple(column.name for column in USAGE.columns)
DEVICE_USAGE_NAMES = tuple(column.name for column in DEVICE_USAGE.columns)
# A record names its job, node, device and incarnation first; all that follows is a column of the same name.
HEAD = ("job", "node", "device", "incarnation")
_USAGE_COLUMNS = (*USAGE_NAMES[:3], *UsageRecord.__struct_fields__[len(HEAD) :])
assert UsageRecord.__struct_fields__[: len(HEAD)] == HEAD
assert set(_USAGE_COLUMNS) == set(USAGE_NAMES)

Numbers = dict[JobKey, int]
Head = tuple[JobKey, str, str, str]


def record_usage(
    connection: Connection, places: Places, jobs: Numbers, records: Sequence[UsageRecord], heads: Iterable[Head]
) -> None:
    """Insert intervals, whose heads are `heads`; the hot path of the ledger, hence tuples and one look-up a row."""
    numbers = {
        head: (jobs[head[0]], places.devices[head[0].cluster, head[1], head[2]], places.incarnations[head[3]])
        for head in heads
    }
    rows = (numbers[row[:4]] + row[4:] for row in map(astuple, records))
    insert_rows(connection, USAGE, _USAGE_COLUMNS, rows, keys=USAGE_NAMES[:4])


def record_device_usage(connection: Connection, places: Places, records: Sequence[DeviceUsageRecord]) -> None:
    """Insert the intervals of whole devices."""
    rows = [
        (
            places.devices[r.cluster, r.node, r.device],
            places.incarnations[r.incarnation],
            r.start_mono_ns,
            r.start_utc_ns,
            r.span_ns,
            r.present_ns,
            r.busy_ns,
            r.job_count_max,
            r.capacity_bytes,
            r.persistent_bytes_mean,
            r.lane_bytes_mean,
            r.foreign_bytes_mean,
        )
        for r in records
    ]
    insert_rows(connection, DEVICE_USAGE, DEVICE_USAGE_NAMES, rows, keys=DEVICE_USAGE_NAMES[:3])


def record_lane_spans(connection: Connection, places: Places, jobs: Numbers, records: Sequence[LaneSpanRecord]) -> None:
    """Insert stays in lanes."""
    names = tuple(column.name for column in LANE_SPANS.columns)
    rows = [
        (
            places.devices[r.job.cluster, r.node, r.device],
            places.incarnations[r.incarnation],
            r.session,
            r.start_mono_ns,
            jobs[r.job],
            r.lane,
            r.lane_bytes,
            r.start_utc_ns,
            r.span_ns,
            r.iteration_count,
        )
        for r in records
    ]
    insert_rows(connection, LANE_SPANS, names, rows, keys=names[:4])


def record_sessions(connection: Connection, places: Places, jobs: Numbers, records: Sequence[SessionRecord]) -> None:
    """Keep each session once, with the latest of what its daemon said."""
    rows: list[Row] = [
        {
            "job_id": jobs[r.job],
            "device_id": places.devices[r.job.cluster, r.node, r.device],
            "incarnation_id": places.incarnations[r.incarnation],
            "number": r.session,
            "start_utc_ns": r.start_utc_ns,
            "start_mono_ns": r.start_mono_ns,
            "end_utc_ns": r.end_utc_ns,
            "end_mono_ns": r.end_mono_ns,
            "is_gated": r.is_gated,
            "end_reason": clean_text(r.end_reason),
            "iteration_count": r.iteration_count,
            "handover_count": r.handover_count,
            "persistent_bytes_max": r.persistent_bytes_max,
            "ephemeral_bytes_max": r.ephemeral_bytes_max,
        }
        for r in records
    ]
    _merge_sessions(connection, rows)


def _merge_sessions(connection: Connection, rows: Sequence[Row]) -> None:
    pending: dict[tuple[int, int, int], Row] = {}
    for row in rows:
        key = _session_key(row)
        pending[key] = merge_session(pending[key], row) if key in pending else row
    if not pending:
        return
    names = ("id", *next(iter(pending.values())))
    devices = sorted({key[0] for key in pending})
    numbers = sorted({key[1] for key in pending})
    for start in range(0, len(numbers), CHUNK):
        among = {"device_id": devices, "number": numbers[start : start + CHUNK]}
        for stored in select_rows(connection, SESSIONS, names, among, is_locked=True):
            new = pending.pop(_session_key(stored), None)
            merged = stored if new is None else merge_session(stored, new)
            if merged != stored:
                connection.execute(update(SESSIONS).where(SESSIONS.c.id == stored["id"]).values(merged))
    insert_rows(connection, SESSIONS, names[1:], [tuple(row.values()) for row in pending.values()])


def _session_key(row: Row) -> tuple[int, int, int]:
    return row["device_id"], row["number"], row["start_utc_ns"]


def merge_session(stored: Row, new: Row) -> Row:
    """Counters only grow, an end stays an end, and a session that was ungated once stays so."""
    merged = dict(stored)
    for name in ("iteration_count", "handover_count", "persistent_bytes_max", "ephemeral_bytes_max"):
        merged[name] = max(stored[name], new[name])
    for name in ("end_utc_ns", "end_mono_ns"):
        values = [row[name] for row in (stored, new) if row[name] is not None]
        merged[name] = max(values) if values else None
    merged["is_gated"] = stored["is_gated"] and new["is_gated"]
    merged["end_reason"] = max(stored["end_reason"], new["end_reason"])
    merged["incarnation_id"] = min(stored["incarnation_id"], new["incarnation_id"])
    return merged


def record_events(connection: Connection, places: Places, jobs: Numbers, records: Sequence[EventRecord]) -> None:
    """Insert what happened."""
    names = tuple(column.name for column in EVENTS.columns)
    rows = [
        (
            places.incarnations[r.incarnation],
            r.sequence,
            r.kind,
            r.happened_utc_ns,
            r.happened_mono_ns,
            places.devices[r.cluster, r.node, r.device] if r.device else None,
            jobs[r.job] if r.job is not None else None,
            r.code,
            r.amount_bytes,
            clean_text(r.detail, DETAIL_LENGTH_MAX),
        )
        for r in records
    ]
    insert_rows(connection, EVENTS, names, rows, keys=names[:2])
