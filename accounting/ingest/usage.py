"""Writes usage, device usage, lane spans, sessions and events.

Intervals, spans and events never change after they are written, so an insert skips a key that exists. Only sessions
change, from hello to bye; their records are merged.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import astuple
from sqlalchemy import Connection, update

from accounting.records import (
    DETAIL_LENGTH_MAX,
    DeviceUsageRecord,
    JobKey,
    LaneSpanRecord,
    NodeEventRecord,
    SessionRecord,
    UsageRecord,
    clean_text,
)
from accounting.storage.catalog import Row, RowCatalog
from accounting.storage.database import chunks, insert_new_rows, insert_rows, select_rows
from accounting.storage.tables import DEVICE_USAGE, EVENTS, LANE_SPANS, SESSIONS, USAGE

# A usage record starts with its job, node, device and incarnation. Each later field is a column of the same name.
HEAD = ("job", "node", "device", "incarnation")
_USAGE_COLUMNS = ("job_id", "device_id", "incarnation_id", *UsageRecord.__struct_fields__[len(HEAD) :])
assert UsageRecord.__struct_fields__[: len(HEAD)] == HEAD
assert set(_USAGE_COLUMNS) == set(USAGE.columns.keys())
_SESSION_FIELDS = [name for name in SessionRecord.__struct_fields__ if name not in (*HEAD, "session")]

JobIds = dict[JobKey, int]
Head = tuple[JobKey, str, str, str]


def record_usage(
    connection: Connection, catalog: RowCatalog, jobs: JobIds, records: Sequence[UsageRecord], heads: Iterable[Head]
) -> None:
    """Insert usage intervals; `heads` are their distinct heads.

    Most of a batch is usage, so this handles tuples with one dictionary lookup per row.
    """
    ids = {
        head: (jobs[head[0]], catalog.devices[head[0].cluster, head[1], head[2]], catalog.incarnations[head[3]])
        for head in heads
    }
    rows = (ids[row[:4]] + row[4:] for row in map(astuple, records))
    insert_new_rows(connection, USAGE, rows, _USAGE_COLUMNS)


def record_device_usage(connection: Connection, catalog: RowCatalog, records: Sequence[DeviceUsageRecord]) -> None:
    """Insert the intervals of whole devices."""
    rows = [
        (
            catalog.devices[record.cluster, record.node, record.device],
            catalog.incarnations[record.incarnation],
            *(getattr(record, name) for name in DEVICE_USAGE.columns.keys()[2:]),
        )
        for record in records
    ]
    insert_new_rows(connection, DEVICE_USAGE, rows)


def record_lane_spans(
    connection: Connection, catalog: RowCatalog, jobs: JobIds, records: Sequence[LaneSpanRecord]
) -> None:
    """Insert stays in lanes."""
    rows = [
        (
            catalog.devices[record.job.cluster, record.node, record.device],
            catalog.incarnations[record.incarnation],
            record.session,
            record.start_mono_ns,
            jobs[record.job],
            record.lane,
            *(getattr(record, name) for name in LANE_SPANS.columns.keys()[6:]),
        )
        for record in records
    ]
    insert_new_rows(connection, LANE_SPANS, rows)


def record_sessions(
    connection: Connection, catalog: RowCatalog, jobs: JobIds, records: Sequence[SessionRecord]
) -> None:
    """Store each session once, with the latest state that its daemon reported."""
    pending: dict[tuple[int, int, int], Row] = {}
    for record in records:
        row: Row = {name: getattr(record, name) for name in _SESSION_FIELDS}
        row["job_id"] = jobs[record.job]
        row["device_id"] = catalog.devices[record.job.cluster, record.node, record.device]
        row["incarnation_id"] = catalog.incarnations[record.incarnation]
        row["number"], row["end_reason"] = record.session, clean_text(record.end_reason)
        key = _session_key(row)
        pending[key] = merge_session(pending[key], row) if key in pending else row
    if not pending:
        return
    names = ("id", *next(iter(pending.values())))
    devices = sorted({key[0] for key in pending})
    numbers = sorted({key[1] for key in pending})
    for part in chunks(numbers):
        among = {"device_id": devices, "number": part}
        for stored in select_rows(connection, SESSIONS, names, among, is_locked=True):
            new = pending.pop(_session_key(stored), None)
            merged = stored if new is None else merge_session(stored, new)
            if merged != stored:
                connection.execute(update(SESSIONS).where(SESSIONS.c.id == stored["id"]).values(merged))
    insert_rows(connection, SESSIONS, names[1:], [tuple(row.values()) for row in pending.values()])


def _session_key(row: Row) -> tuple[int, int, int]:
    return row["device_id"], row["number"], row["start_utc_ns"]


def merge_session(stored: Row, new: Row) -> Row:
    """Counters only grow, an ended session stays ended, and a session that was ever ungated stays ungated."""
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


def record_events(
    connection: Connection, catalog: RowCatalog, jobs: JobIds, records: Sequence[NodeEventRecord]
) -> None:
    """Insert events."""
    rows = [
        (
            catalog.incarnations[record.incarnation],
            record.sequence,
            record.kind,
            record.happened_utc_ns,
            record.happened_mono_ns,
            catalog.devices[record.cluster, record.node, record.device] if record.device else None,
            jobs[record.job] if record.job is not None else None,
            record.code,
            record.amount_bytes,
            clean_text(record.detail, DETAIL_LENGTH_MAX),
        )
        for record in records
    ]
    insert_new_rows(connection, EVENTS, rows)
