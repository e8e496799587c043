"""Writes batches of records to the database, each batch in one transaction.

Many nodes may write at once, and a batch may be repeated: a record that is already stored changes nothing. The caller
keeps its spool until `write` returns and may submit the same batch again after any failure.
"""

from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, TypeVar

from sqlalchemy import Connection

from accounting.ingest import accounts, jobs, usage
from accounting.ingest.usage import HEAD, Head
from accounting.profiles import learn
from accounting.records import (
    AccountRecord,
    AdmissionRecord,
    DeviceRecord,
    DeviceUsageRecord,
    IncarnationRecord,
    JobKey,
    JobRecord,
    LaneSpanRecord,
    MeasurementRecord,
    NodeEventRecord,
    Record,
    SessionRecord,
    SuspensionRecord,
    UsageRecord,
)
from accounting.storage.catalog import RowCatalog
from accounting.storage.database import Database, select_rows
from accounting.storage.tables import WATERMARKS

# Row ids of jobs that a writer caches. A node runs a few hundred jobs per day.
JOBS_CACHED_MAX = 100_000

_Kind = TypeVar("_Kind")
_head_of = attrgetter(*HEAD)


class _Batch:
    """Records by kind. Nearly all of a batch is usage, so one comprehension takes it and the rest is small."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records: dict[type, list[Any]] = defaultdict(list)
        self._records[UsageRecord] = [record for record in records if type(record) is UsageRecord]
        for record in [record for record in records if type(record) is not UsageRecord]:
            self._records[type(record)].append(record)
        # The distinct heads of the usage records: all that has to be looked up for them.
        self.usage_heads: set[Head] = set(map(_head_of, self.of(UsageRecord)))

    def of(self, kind: type[_Kind]) -> list[_Kind]:
        return self._records[kind]


class LedgerWriter:
    """Writes batches to one database. Not thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._catalog = RowCatalog()
        self._jobs: dict[JobKey, int] = {}

    def write(self, records: Sequence[Record]) -> int:
        """Write all of `records` or raise OperatingError. A good batch has a few hundred to a few thousand.

        Returns the number of records that were dropped because they are older than a roll-up or purge.
        """

        def work(connection: Connection) -> tuple[RowCatalog, dict[JobKey, int], int]:
            # Clear the cache first: row ids from an attempt that is rolled back must not stay in it.
            catalog, row_ids = self._catalog.copy(), self._jobs
            self._jobs = {}
            kept = _without_late(connection, records)
            _write_batch(connection, catalog, row_ids, _Batch(kept))
            return catalog, row_ids, len(records) - len(kept)

        catalog, row_ids, late_count = self._database.write(work)
        self._catalog = catalog
        self._jobs = row_ids if len(row_ids) <= JOBS_CACHED_MAX else {}
        return late_count


def _write_batch(connection: Connection, catalog: RowCatalog, row_ids: dict[JobKey, int], batch: _Batch) -> None:
    _find_devices(connection, catalog, batch)
    catalog.record_incarnations(connection, batch.of(IncarnationRecord))
    catalog.record_devices(connection, batch.of(DeviceRecord))
    accounts.record_accounts(connection, catalog, batch.of(AccountRecord))
    store = jobs.JobStore(connection, catalog, row_ids)
    store.record(batch.of(JobRecord), _mentioned(batch))
    store.record_suspensions(batch.of(SuspensionRecord))
    jobs.record_admissions(connection, catalog, batch.of(AdmissionRecord))
    usage.record_sessions(connection, catalog, row_ids, batch.of(SessionRecord))
    usage.record_lane_spans(connection, catalog, row_ids, batch.of(LaneSpanRecord))
    usage.record_usage(connection, catalog, row_ids, batch.of(UsageRecord), batch.usage_heads)
    usage.record_device_usage(connection, catalog, batch.of(DeviceUsageRecord))
    usage.record_events(connection, catalog, row_ids, batch.of(NodeEventRecord))
    for measurement in batch.of(MeasurementRecord):
        learn(connection, catalog.clusters[measurement.job.cluster], row_ids[measurement.job], measurement)


def _find_devices(connection: Connection, catalog: RowCatalog, batch: _Batch) -> None:
    found = set(batch.usage_heads)
    for records in (batch.of(SessionRecord), batch.of(LaneSpanRecord)):
        found.update(map(_head_of, records))
    devices = {(job.cluster, node, device) for job, node, device, _ in found}
    incarnations = {(job.cluster, node, incarnation) for job, node, _, incarnation in found}
    happened: list[DeviceUsageRecord | NodeEventRecord] = [*batch.of(DeviceUsageRecord), *batch.of(NodeEventRecord)]
    for event in happened:
        incarnations.add((event.cluster, event.node, event.incarnation))
        if event.device:
            devices.add((event.cluster, event.node, event.device))
    catalog.find_devices(connection, devices)
    catalog.find_incarnations(connection, incarnations)


def _mentioned(batch: _Batch) -> set[JobKey]:
    found = {job for job, _, _, _ in batch.usage_heads}
    found |= {record.key for record in batch.of(SuspensionRecord)}
    for records in (batch.of(SessionRecord), batch.of(LaneSpanRecord), batch.of(MeasurementRecord)):
        found |= {record.job for record in records}
    found |= {event.job for event in batch.of(NodeEventRecord) if event.job is not None}
    return found | {admission.job for admission in batch.of(AdmissionRecord) if admission.job is not None}


def _without_late(connection: Connection, records: Sequence[Record]) -> list[Record]:
    names = {"name": ("rolled_up", "purged")}
    rows = select_rows(connection, WATERMARKS, ("name", "before_utc_ns"), names)
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
            # Without an end, the start decides. A stored run loses nothing by that: its end record repeats everything.
            last_ns = record.end_utc_ns if record.end_utc_ns is not None else record.start_utc_ns
            return last_ns is not None and last_ns < purged_ns
        case MeasurementRecord():
            return record.measured_utc_ns < purged_ns
        case NodeEventRecord():
            return record.happened_utc_ns < purged_ns
        case AdmissionRecord():
            return record.decided_utc_ns < purged_ns
        case SuspensionRecord():
            return record.start_utc_ns < purged_ns
        case _:
            return False
