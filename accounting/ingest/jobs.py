"""Writes jobs, suspensions and admissions. What several nodes and Slurm report about a job becomes one row.

The result of a merge does not depend on the order. Slurm's times override those of nodes, a known value is never
erased, and between nodes the earliest start, the latest end and the longest run win. A spool may therefore be replayed
twice, late, or from many nodes at once.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter, itemgetter

from sqlalchemy import Connection, update

from accounting.records import (
    DETAIL_LENGTH_MAX,
    AdmissionRecord,
    JobKey,
    JobRecord,
    Source,
    SuspensionRecord,
    clean_text,
)
from accounting.storage.catalog import Row, RowCatalog, ensure_rows
from accounting.storage.database import chunks, insert_new_rows, insert_rows, select_rows
from accounting.storage.tables import ADMISSIONS, JOBS, REASONS, SUSPENSIONS

TEXTS = ("user", "account", "partition", "qos", "name", "signature", "admission", "state")
NUMBERS = ("uid", "array_job_id", "array_task_id", "het_job_id", "het_offset", "exit_code")
EARLIEST = ("submit_utc_ns", "eligible_utc_ns", "start_utc_ns", "start_mono_ns")
LATEST = ("end_utc_ns", "end_mono_ns", "elapsed_ns")
COLUMNS = tuple(column.name for column in JOBS.columns if column.name != "id")

_PLAIN = (*NUMBERS, *EARLIEST, "end_utc_ns", "end_mono_ns", "device_count", "suspended_ns")
_plain_values = attrgetter(*_PLAIN)
_text_values = attrgetter(*TEXTS)
_VALUES = itemgetter(*COLUMNS)

_RunKey = tuple[int, int, int]


def row_of(record: JobRecord, cluster_id: int) -> Row:
    """The row that `record` alone would make."""
    row: Row = dict(zip(_PLAIN, _plain_values(record), strict=True))
    row.update(zip(TEXTS, [clean_text(text) for text in _text_values(record)], strict=True))
    row["name"] = clean_text(record.name, DETAIL_LENGTH_MAX)
    row["cluster_id"] = cluster_id
    row["slurm_job_id"], row["restart_count"] = record.key.job_id, record.key.restart_count
    row["sluid"] = record.key.sluid
    row["source"] = int(record.source)
    row["elapsed_ns"] = _elapsed_ns(record)
    return _with_derived(row)


def merge_job(stored: Row, new: Row) -> Row:
    """Merge two rows about the same run; the result does not depend on which came first."""
    merged = dict(stored)
    # Slurm's row counts as newer and, from the same source, the row with an end: a start that is replayed after the end
    # must not reopen the job.
    older, newer = (stored, new) if _authority(new) >= _authority(stored) else (new, stored)
    for name in TEXTS:
        merged[name] = newer[name] or older[name]
    for name in NUMBERS:
        merged[name] = older[name] if newer[name] is None else newer[name]
    both_from_nodes = stored["source"] == new["source"] == Source.NODE
    for names, choose in ((EARLIEST, min), (LATEST, max)):
        for name in names:
            values = [row[name] for row in (newer, older) if row[name] is not None]
            # Monotonic times come from nodes only: Slurm does not report them.
            is_extreme = both_from_nodes or name.endswith("_mono_ns")
            merged[name] = (choose(values) if is_extreme else values[0]) if values else None
    for name in ("suspended_ns", "device_count"):
        merged[name] = max(stored[name], new[name]) if both_from_nodes else newer[name]
    merged["sluid"] = stored["sluid"] or new["sluid"]
    merged["source"] = newer["source"]
    return _with_derived(merged)


class JobStore:
    """Writes jobs and finds their row ids within one transaction. `row_ids` is valid after the commit."""

    def __init__(self, connection: Connection, catalog: RowCatalog, row_ids: dict[JobKey, int]) -> None:
        self._connection = connection
        self._catalog = catalog
        self.row_ids = row_ids

    def record(self, records: Sequence[JobRecord], referenced: Iterable[JobKey]) -> None:
        """Merge `records`, and create an empty row for each job in `referenced` that has none."""
        described = {record.key for record in records}
        stubs = [JobRecord(key=key) for key in sorted(set(referenced) - described) if key not in self.row_ids]
        everything = [*records, *stubs]
        self._catalog.find_clusters(self._connection, (record.key.cluster for record in everything))
        found = self._find([record.key for record in everything])
        fresh: list[Row] = []
        for record in everything:
            row = row_of(record, self._catalog.clusters[record.key.cluster])
            match = _match(found[_run_key(row)], row["sluid"])
            if match is None:
                found[_run_key(row)].append(row)
                fresh.append(row)
            else:
                match.update(merge_job(match, row))
        self._write(fresh, found)
        self._find_row_ids([record.key for record in everything])

    def _find(self, keys: Sequence[JobKey]) -> dict[_RunKey, list[Row]]:
        found: dict[_RunKey, list[Row]] = defaultdict(list)
        for stored in self._select(keys, ("id", *COLUMNS), is_locked=True):
            stored["_stored"] = dict(stored)
            found[_run_key(stored)].append(stored)
        return found

    def _select(self, keys: Sequence[JobKey], names: Sequence[str], *, is_locked: bool = False) -> Iterator[Row]:
        by_cluster: dict[int, set[int]] = defaultdict(set)
        for key in keys:
            by_cluster[self._catalog.clusters[key.cluster]].add(key.job_id)
        for cluster_id, job_ids in sorted(by_cluster.items()):
            # Lock rows in the same order everywhere, or two writers could deadlock.
            for part in chunks(sorted(job_ids)):
                among = {"cluster_id": (cluster_id,), "slurm_job_id": part}
                yield from select_rows(self._connection, JOBS, names, among, is_locked=is_locked)

    def _write(self, fresh: Sequence[Row], found: dict[_RunKey, list[Row]]) -> None:
        insert_rows(self._connection, JOBS, COLUMNS, [_VALUES(row) for row in fresh])
        for rows in found.values():
            for row in rows:
                stored = row.pop("_stored", None)
                if stored is None:
                    continue
                changed = {name: row[name] for name in COLUMNS if stored[name] != row[name]}
                if changed:
                    self._connection.execute(update(JOBS).where(JOBS.c.id == stored["id"]).values(changed))

    def _find_row_ids(self, keys: Sequence[JobKey]) -> None:
        wanted = {key for key in keys if key not in self.row_ids}
        candidates: dict[_RunKey, list[Row]] = defaultdict(list)
        names = ("id", "cluster_id", "slurm_job_id", "restart_count", "sluid")
        for row in self._select(list(wanted), names):
            candidates[_run_key(row)].append(row)
        for key in wanted:
            run = (self._catalog.clusters[key.cluster], key.job_id, key.restart_count)
            match = _match(candidates[run], key.sluid)
            assert match is not None, f"{key} was just written"
            self.row_ids[key] = match["id"]

    def record_suspensions(self, records: Sequence[SuspensionRecord]) -> None:
        """Store each span once, keyed by its start."""
        rows = [(self.row_ids[record.key], record.start_utc_ns, record.span_ns) for record in records]
        insert_new_rows(self._connection, SUSPENSIONS, rows)


def record_admissions(connection: Connection, catalog: RowCatalog, records: Sequence[AdmissionRecord]) -> None:
    """Store each admission once, with all its reasons. An admission never changes, so a repeated id is ignored."""
    catalog.find_clusters(connection, (record.cluster for record in records))
    texts = ("user", "account", "partition", "signature", "device_model")
    others = {column.name for column in ADMISSIONS.columns} - {"id", "cluster_id", "name", *texts}
    rows = [
        {
            "cluster_id": catalog.clusters[record.cluster],
            "name": clean_text(record.admission),
            **{name: clean_text(getattr(record, name)) for name in texts},
            **{name: getattr(record, name) for name in others},
        }
        for record in records
    ]
    stored = ensure_rows(connection, ADMISSIONS, ("cluster_id", "name"), rows) if rows else []
    ids = {(row["cluster_id"], row["name"]): row["id"] for row in stored}
    reasons = [
        (
            ids[catalog.clusters[record.cluster], clean_text(record.admission)],
            position,
            clean_text(reason.what),
            reason.needed,
            reason.free,
            clean_text(reason.unit, 32),
            clean_text(reason.advice, DETAIL_LENGTH_MAX),
        )
        for record in records
        for position, reason in enumerate(record.reasons)
    ]
    insert_new_rows(connection, REASONS, reasons)


def _elapsed_ns(record: JobRecord) -> int | None:
    if record.start_utc_ns is None or record.end_utc_ns is None:
        return None
    if record.start_mono_ns is not None and record.end_mono_ns is not None:
        # A node's wall clock may be stepped while the job runs; its monotonic clock cannot.
        span_ns = record.end_mono_ns - record.start_mono_ns
    else:
        span_ns = record.end_utc_ns - record.start_utc_ns
    return max(0, span_ns - record.suspended_ns)


def _with_derived(row: Row) -> Row:
    start_ns, elapsed_ns = row["start_utc_ns"], row["elapsed_ns"]
    row["until_utc_ns"] = (
        None if start_ns is None or elapsed_ns is None else start_ns + elapsed_ns + row["suspended_ns"]
    )
    since_ns = row["eligible_utc_ns"] if row["eligible_utc_ns"] is not None else row["submit_utc_ns"]
    row["wait_ns"] = None if start_ns is None or since_ns is None else max(0, start_ns - since_ns)
    return row


def _authority(row: Row) -> tuple[int, bool]:
    return row["source"], row["end_utc_ns"] is not None


def _run_key(row: Row) -> _RunKey:
    return row["cluster_id"], row["slurm_job_id"], row["restart_count"]


def _match(rows: Sequence[Row], sluid: str) -> Row | None:
    """The row of a run among those with its job id. Slurm reuses job ids; the SLUID, if known, tells the runs apart."""
    for row in rows:
        if row["sluid"] == sluid:
            return row
    if not rows:
        return None
    if sluid == "":
        return rows[-1]
    return next((row for row in rows if row["sluid"] == ""), None)
