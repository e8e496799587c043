"""Writes batches of records to the database, each batch in one transaction.

Many nodes may write at once, and a batch may be repeated: a record that is already stored changes nothing. The caller
keeps its spool until `write` returns and may submit the same batch again after any failure.
"""

from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, TypeVar

from sqlalchemy import Connection

from accounting import records
from accounting.ingest import accounts, jobs, usage
from accounting.ingest.usage import HEAD, Head
from accounting.profiles import learn
from accounting.storage.catalog import RowCatalog
from accounting.storage.database import Database, select_rows
from accounting.storage.tables import WATERMARKS

# The number of job row ids that a writer caches. A node runs a few hundred jobs per day.
JOBS_CACHED_MAX = 100_000

_Kind = TypeVar("_Kind")
_head_of = attrgetter(*HEAD)


class _Batch:
    """Records by kind. Nearly all of a batch is usage, so one comprehension selects it; a loop handles the rest."""

    def __init__(self, batch: Sequence[records.Record]) -> None:
        self._records: dict[type, list[Any]] = defaultdict(list)
        self._records[records.UsageRecord] = [record for record in batch if type(record) is records.UsageRecord]
        for record in [record for record in batch if type(record) is not records.UsageRecord]:
            self._records[type(record)].append(record)
        # The distinct heads of the usage records. Only these need a lookup.
        self.usage_heads: set[Head] = set(map(_head_of, self.of(records.UsageRecord)))

    def of(self, kind: type[_Kind]) -> list[_Kind]:
        return self._records[kind]


class LedgerWriter:
    """Writes batches to one database. Not thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._catalog = RowCatalog()
        self._jobs: dict[records.JobKey, int] = {}

    def write(self, batch: Sequence[records.Record]) -> int:
        """Write the whole batch or raise OperatingError. A good batch has a few hundred to a few thousand records.

        Returns the number of records that were dropped because they are older than a roll-up or purge.
        """

        def work(connection: Connection) -> tuple[RowCatalog, dict[records.JobKey, int], int]:
            # Clear the cache first: row ids from an attempt that is rolled back must not stay in it.
            catalog, row_ids = self._catalog.copy(), self._jobs
            self._jobs = {}
            kept = _without_late(connection, batch)
            _write_batch(connection, catalog, row_ids, _Batch(kept))
            return catalog, row_ids, len(batch) - len(kept)

        catalog, row_ids, late_count = self._database.write(work)
        self._catalog = catalog
        self._jobs = row_ids if len(row_ids) <= JOBS_CACHED_MAX else {}
        return late_count


def _write_batch(
    connection: Connection, catalog: RowCatalog, row_ids: dict[records.JobKey, int], batch: _Batch
) -> None:
    _find_devices(connection, catalog, batch)
    catalog.record_incarnations(connection, batch.of(records.IncarnationRecord))
    catalog.record_devices(connection, batch.of(records.DeviceRecord))
    accounts.record_accounts(connection, catalog, batch.of(records.AccountRecord))
    store = jobs.JobStore(connection, catalog, row_ids)
    store.record(batch.of(records.JobRecord), _referenced_jobs(batch))
    store.record_suspensions(batch.of(records.SuspensionRecord))
    jobs.record_admissions(connection, catalog, batch.of(records.AdmissionRecord))
    usage.record_sessions(connection, catalog, row_ids, batch.of(records.SessionRecord))
    usage.record_lane_spans(connection, catalog, row_ids, batch.of(records.LaneSpanRecord))
    usage.record_usage(connection, catalog, row_ids, batch.of(records.UsageRecord), batch.usage_heads)
    usage.record_device_usage(connection, catalog, batch.of(records.DeviceUsageRecord))
    usage.record_events(connection, catalog, row_ids, batch.of(records.NodeEventRecord))
    for measurement in batch.of(records.MeasurementRecord):
        learn(connection, catalog.clusters[measurement.job.cluster], row_ids[measurement.job], measurement)


def _find_devices(connection: Connection, catalog: RowCatalog, batch: _Batch) -> None:
    found = set(batch.usage_heads)
    found.update(map(_head_of, [*batch.of(records.SessionRecord), *batch.of(records.LaneSpanRecord)]))
    devices = {(job.cluster, node, device) for job, node, device, _ in found}
    incarnations = {(job.cluster, node, incarnation) for job, node, _, incarnation in found}
    happened: list[records.DeviceUsageRecord | records.NodeEventRecord] = [*batch.of(records.DeviceUsageRecord)]
    for record in happened + batch.of(records.NodeEventRecord):
        incarnations.add((record.cluster, record.node, record.incarnation))
        if record.device:
            devices.add((record.cluster, record.node, record.device))
    catalog.find_devices(connection, devices)
    catalog.find_incarnations(connection, incarnations)


def _referenced_jobs(batch: _Batch) -> set[records.JobKey]:
    found = {job for job, _, _, _ in batch.usage_heads}
    found |= {record.key for record in batch.of(records.SuspensionRecord)}
    for kept in (
        batch.of(records.SessionRecord),
        batch.of(records.LaneSpanRecord),
        batch.of(records.MeasurementRecord),
        batch.of(records.NodeEventRecord),
        batch.of(records.AdmissionRecord),
    ):
        found |= {record.job for record in kept if record.job is not None}
    return found


def _without_late(connection: Connection, batch: Sequence[records.Record]) -> list[records.Record]:
    names = {"name": ("rolled_up", "purged")}
    rows = select_rows(connection, WATERMARKS, ("name", "before_utc_ns"), names)
    before = {row["name"]: row["before_utc_ns"] for row in rows}
    if not before:
        return list(batch)
    rolled_ns, purged_ns = before.get("rolled_up", 0), before.get("purged", 0)
    return [record for record in batch if not _is_late(record, max(rolled_ns, purged_ns), purged_ns)]


def _is_late(record: records.Record, rolled_ns: int, purged_ns: int) -> bool:
    match record:
        case records.UsageRecord() | records.DeviceUsageRecord() | records.LaneSpanRecord():
            return record.start_utc_ns < rolled_ns
        case records.JobRecord() | records.SessionRecord():
            # Without an end, the start decides. A stored run loses nothing, because its end record repeats everything.
            last_ns = record.end_utc_ns if record.end_utc_ns is not None else record.start_utc_ns
            return last_ns is not None and last_ns < purged_ns
        case (
            records.MeasurementRecord(measured_utc_ns=at_ns)
            | records.NodeEventRecord(happened_utc_ns=at_ns)
            | records.AdmissionRecord(decided_utc_ns=at_ns)
            | records.SuspensionRecord(start_utc_ns=at_ns)
        ):
            return at_ns < purged_ns
        case _:
            return False
