"""The ledger's way into the database: a batch of records becomes rows in one transaction, or none of them does.

Safe for many nodes writing at once and for replays: a record that is there already changes nothing. The caller keeps
its spool until `write` returns, and may hand over the same batch again after any failure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection

from accounting.ingest import accounts, jobs, usage
from accounting.ingest.usage import HEAD, Head
from accounting.profiles import learn
from accounting.records import (
    AccountRecord,
    AdmissionRecord,
    DeviceRecord,
    DeviceUsageRecord,
    EventRecord,
    IncarnationRecord,
    JobKey,
    JobRecord,
    LaneSpanRecord,
    MeasurementRecord,
    Record,
    SessionRecord,
    SuspensionRecord,
    UsageRecord,
)
from accounting.storage.catalog import Places, table_of
from accounting.storage.database import Database, select_rows
from accounting.storage.models import WatermarkRow

# What a writer remembers of job numbers; a node has a few hundred jobs a day.
JOBS_REMEMBERED_MAX = 100_000


_head_of = attrgetter(*HEAD)


@dataclass(frozen=True)
class Written:
    """What became of a batch. `late_count` records are older than a roll-up or purge and were left out."""

    record_count: int
    late_count: int = 0


@dataclass
class _Batch:
    """Records by kind, in the order in which they refer to each other."""

    incarnations: list[IncarnationRecord] = field(default_factory=list)
    devices: list[DeviceRecord] = field(default_factory=list)
    accounts: list[AccountRecord] = field(default_factory=list)
    jobs: list[JobRecord] = field(default_factory=list)
    suspensions: list[SuspensionRecord] = field(default_factory=list)
    admissions: list[AdmissionRecord] = field(default_factory=list)
    sessions: list[SessionRecord] = field(default_factory=list)
    lane_spans: list[LaneSpanRecord] = field(default_factory=list)
    usage: list[UsageRecord] = field(default_factory=list)
    # Who and where the usage is of, each pair once: all that has to be found for it.
    usage_heads: set[Head] = field(default_factory=set)
    device_usage: list[DeviceUsageRecord] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)
    measurements: list[MeasurementRecord] = field(default_factory=list)


class LedgerWriter:
    """Hands batches over to one database. Not to be shared between threads."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._places = Places()
        self._jobs: dict[JobKey, int] = {}

    def write(self, records: Sequence[Record]) -> Written:
        """Write all of `records` or raise OperatingError; a few hundred to a few thousand are a good batch."""

        def work(connection: Connection) -> tuple[Places, dict[JobKey, int], int]:
            # Taken away first: numbers made by an attempt that is rolled back must not be remembered.
            places, numbers = self._places.copy(), self._jobs
            self._jobs = {}
            kept = _without_late(connection, records)
            _write_batch(connection, places, numbers, _sort(kept))
            return places, numbers, len(records) - len(kept)

        places, numbers, late_count = self._database.write(work)
        self._places = places
        self._jobs = numbers if len(numbers) <= JOBS_REMEMBERED_MAX else {}
        return Written(len(records), late_count)


def _write_batch(connection: Connection, places: Places, numbers: dict[JobKey, int], batch: _Batch) -> None:
    _find_places(connection, places, batch)
    places.record_incarnations(connection, batch.incarnations)
    places.record_devices(connection, batch.devices)
    accounts.record_accounts(connection, places, batch.accounts)
    store = jobs.JobStore(connection, places, numbers)
    store.record(batch.jobs, _mentioned(batch))
    store.record_suspensions(batch.suspensions)
    jobs.record_admissions(connection, places, batch.admissions)
    usage.record_sessions(connection, places, numbers, batch.sessions)
    usage.record_lane_spans(connection, places, numbers, batch.lane_spans)
    usage.record_usage(connection, places, numbers, batch.usage, batch.usage_heads)
    usage.record_device_usage(connection, places, batch.device_usage)
    usage.record_events(connection, places, numbers, batch.events)
    for measurement in batch.measurements:
        learn(connection, places.clusters[measurement.job.cluster], numbers[measurement.job], measurement)


def _find_places(connection: Connection, places: Places, batch: _Batch) -> None:
    found = set(batch.usage_heads)
    for facts in (batch.sessions, batch.lane_spans):
        found.update(map(_head_of, facts))
    devices = {(job.cluster, node, device) for job, node, device, _ in found}
    incarnations = {(job.cluster, node, incarnation) for job, node, _, incarnation in found}
    happenings: list[DeviceUsageRecord | EventRecord] = [*batch.device_usage, *batch.events]
    for happening in happenings:
        incarnations.add((happening.cluster, happening.node, happening.incarnation))
        if happening.device:
            devices.add((happening.cluster, happening.node, happening.device))
    places.find_devices(connection, devices)
    places.find_incarnations(connection, incarnations)


def _sort(records: Sequence[Record]) -> _Batch:
    """By kind. Usage is nearly all of a batch, so it is taken by one comprehension and the rest is small."""
    usages = [record for record in records if type(record) is UsageRecord]
    batch = _Batch(usage=usages, usage_heads=set(map(_head_of, usages)))
    lists: dict[type, list[Any]] = {
        IncarnationRecord: batch.incarnations,
        DeviceRecord: batch.devices,
        AccountRecord: batch.accounts,
        JobRecord: batch.jobs,
        SuspensionRecord: batch.suspensions,
        AdmissionRecord: batch.admissions,
        SessionRecord: batch.sessions,
        LaneSpanRecord: batch.lane_spans,
        DeviceUsageRecord: batch.device_usage,
        EventRecord: batch.events,
        MeasurementRecord: batch.measurements,
    }
    for record in [record for record in records if type(record) is not UsageRecord]:
        lists[type(record)].append(record)
    return batch


def _mentioned(batch: _Batch) -> set[JobKey]:
    found = {job for job, _, _, _ in batch.usage_heads}
    found |= {record.key for record in batch.suspensions}
    for facts in (batch.sessions, batch.lane_spans, batch.measurements):
        found |= {fact.job for fact in facts}
    found |= {event.job for event in batch.events if event.job is not None}
    return found | {admission.job for admission in batch.admissions if admission.job is not None}


def _without_late(connection: Connection, records: Sequence[Record]) -> list[Record]:
    names = {"name": ("rolled_up", "purged")}
    rows = select_rows(connection, table_of(WatermarkRow), ("name", "before_utc_ns"), names)
    before = {row["name"]: row["before_utc_ns"] for row in rows}
    if not before:
        return list(records)
    rolled_ns, purged_ns = before.get("rolled_up", 0), before.get("purged", 0)
    return [record for record in records if not _is_late(record, max(rolled_ns, purged_ns), purged_ns)]


def _is_late(record: Record, rolled_ns: int, purged_ns: int) -> bool:
    match record:
        case UsageRecord() | DeviceUsageRecord() | LaneSpanRecord():
            return record.start_utc_ns < rolled_ns
        case JobRecord() | SessionRecord():
            # Without an end its start counts: if it is still there the replay adds nothing, and an end restates it all.
            known_ns = record.end_utc_ns if record.end_utc_ns is not None else record.start_utc_ns
            return known_ns is not None and known_ns < purged_ns
        case MeasurementRecord():
            return record.measured_utc_ns < purged_ns
        case EventRecord():
            return record.happened_utc_ns < purged_ns
        case AdmissionRecord():
            return record.decided_utc_ns < purged_ns
        case SuspensionRecord():
            return record.start_utc_ns < purged_ns
        case _:
            return False
