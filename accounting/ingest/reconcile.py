"""Compares the jobs in the database with Slurm's: adds missing jobs, adopts Slurm's times, and reports differences.

Slurm decides when a job ran, so that held time equals elapsed x allocation to the second. A difference beyond the
tolerance is reported before Slurm's value replaces ours. A row that cannot be read or stored is skipped and counted,
because it must not keep the other jobs from being compared.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import msgspec
from msgspec.structs import replace
from sqlalchemy import ColumnElement, Connection, func, select

from accounting.ingest.ledger import LedgerWriter
from accounting.records import JobKey, JobRecord, Source, clean_text
from accounting.storage.catalog import Row
from accounting.storage.database import Database, chunks
from accounting.storage.tables import CLUSTERS, JOBS, SESSIONS, USAGE
from nodedaemon.core.errors import OperatingError, RequestError
from nodedaemon.core.types import SECOND_NS
from nodedaemon.wire.envelope import UnreachableError
from nodedaemon.wire.segment import AdmissionSegment, parse_segment

# The fields that we request. With SLURM_TIME_FORMAT=%s, sacct prints times as seconds since the epoch.
SACCT_FIELDS = (
    "JobIDRaw,JobID,Cluster,User,UID,Account,Partition,QOS,JobName,State,ExitCode,Submit,Eligible,Start,End,ElapsedRaw,"
    "Suspended,AllocTRES,ReqTRES,AdminComment"
)
SACCT_OPTIONS = ("-a", "-D", "-X")

NEVER_NS = 2**62
# Slurm's ids and counts have 32 bits, and so have the columns for counts.
NUMBER_MAX = 2**31 - 1
ID_MAX = 2**32 - 1
# In nanoseconds, a later time does not fit into 64 bits.
TIME_MAX_S = NEVER_NS // SECOND_NS
# What sacct prints for a time that has not come yet.
_NO_TIME = frozenset({"", "unknown", "none", "n/a"})
_DURATION = re.compile(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})(?:\.\d+)?", re.ASCII)
_ARRAY = re.compile(r"(\d+)_(\d+)")
_HET = re.compile(r"(\d+)\+(\d+)")


class SacctRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run as sacct reports it."""

    record: JobRecord
    elapsed_s: int
    admin_comment: str = ""


class SacctTable(NamedTuple):
    """The runs with gres/salus in sacct's output, and how many rows could not be read."""

    rows: list[SacctRow]
    bad_count: int = 0


@dataclass(frozen=True)
class JobMismatch:
    """A run whose values differ between our database and Slurm's."""

    job: JobKey
    what: str
    ours: str
    slurms: str


@dataclass
class Reconciled:
    """The result of a comparison. `filled` were missing from our database, `unknown` from sacct.

    `skipped` could not be stored.
    """

    compared_count: int = 0
    filled: list[JobKey] = field(default_factory=list)
    disagreements: list[JobMismatch] = field(default_factory=list)
    unknown: list[JobKey] = field(default_factory=list)
    skipped: list[JobKey] = field(default_factory=list)


def read_sacct(text: str, *, cluster: str) -> SacctTable:
    """The runs in a file that `sacct -P` wrote, with its heading.

    sacct does not quote names, so a name in such a file can pass for other columns or for a row. salus-admitd reads
    sacct's output with `read_rows` and a delimiter that users cannot guess.
    """
    if not text:
        return SacctTable([])
    # Only a newline ends a row. str.splitlines would also split at characters that a job's name may contain.
    lines = text.split("\n")
    names = [name.strip() for name in lines[0].split("|")]
    missing = {"JobIDRaw", "Start", "End", "AllocTRES"} - set(names)
    if missing:
        raise RequestError(
            f"cannot read sacct output: the heading lacks {', '.join(sorted(missing))}; "
            f"run sacct with -P -o {SACCT_FIELDS}"
        )
    rows = [line.split("|") for line in lines[1:] if line]
    whole = [dict(zip(names, cells, strict=True)) for cells in rows if len(cells) == len(names)]
    table = read_rows(whole, cluster=cluster)
    return SacctTable(table.rows, table.bad_count + len(rows) - len(whole))


def read_rows(rows: Iterable[dict[str, str]], *, cluster: str) -> SacctTable:
    """The runs with gres/salus in rows of sacct by field. A row that names no cluster belongs to `cluster`.

    The runs of each job are numbered in the order of their starts: -D lists every requeue, but without a number.
    """
    found: list[tuple[SacctRow, int | None]] = []
    bad_count = 0
    for row in rows:
        try:
            if _device_count(row):
                found.append((_read_row(row, cluster), _integer(row.get("Restarts", ""))))
        except (ValueError, OverflowError):
            bad_count += 1
    found.sort(key=lambda one: (one[0].record.key.job_id, one[0].record.start_utc_ns or NEVER_NS))
    counts: Counter[int] = Counter()
    numbered: list[SacctRow] = []
    for run, restart_count in found:
        job_id = run.record.key.job_id
        key = replace(run.record.key, restart_count=counts[job_id] if restart_count is None else restart_count)
        counts[job_id] += 1
        numbered.append(replace(run, record=replace(run.record, key=key)))
    return SacctTable(numbered, bad_count)


def reconcile(
    database: Database,
    rows: Sequence[SacctRow],
    *,
    window: tuple[int, int],
    tolerance_s: int = 2,
    is_dry: bool = False,
) -> Reconciled:
    """Compare `rows` with our jobs in `window`. Unless `is_dry`, store Slurm's values."""
    found = Reconciled(compared_count=len(rows))
    clusters = {row.record.key.cluster for row in rows}
    ours = _stored(database, clusters, {row.record.key.job_id for row in rows}, window)
    seen: set[tuple[str, int, int]] = set()
    for row in rows:
        key = row.record.key
        run = (key.cluster, key.job_id, key.restart_count)
        seen.add(run)
        stored = ours.get(run)
        if stored is None:
            found.filled.append(key)
        else:
            found.disagreements += _compare(key, stored, row, tolerance_s)
    found.unknown = [JobKey(cluster=run[0], job_id=run[1], restart_count=run[2]) for run in sorted(set(ours) - seen)]
    if not is_dry:
        for part in chunks(rows):
            found.skipped += _store(database, [row.record for row in part])
    return found


def _store(database: Database, records: Sequence[JobRecord]) -> list[JobKey]:
    """Write `records` and return the keys of those that the database does not accept."""
    try:
        LedgerWriter(database).write(records)
    except UnreachableError:
        raise
    except OperatingError:
        if len(records) == 1:
            return [records[0].key]
        # Halve the batch until the bad records are alone.
        middle = len(records) // 2
        return _store(database, records[:middle]) + _store(database, records[middle:])
    return []


def settled(database: Database, keys: Sequence[JobKey]) -> set[JobKey]:
    """The runs for which the nodes have reported everything: all sessions ended, and usage recorded up to their end."""
    wanted = {(key.cluster, key.job_id, key.restart_count): key for key in keys}
    found: set[JobKey] = set()
    for part in chunks(sorted({run[1] for run in wanted})):
        with database.reading() as connection:
            runs = (
                select(JOBS.c.id, JOBS.c.slurm_job_id, JOBS.c.restart_count, JOBS.c.end_mono_ns, CLUSTERS.c.name)
                .join(CLUSTERS, CLUSTERS.c.id == JOBS.c.cluster_id)
                .where(JOBS.c.slurm_job_id.in_(part))
            )
            rows = connection.execute(runs).all()
            last = _last_reports(connection, [row.id for row in rows])
        for row in rows:
            key = wanted.get((row.name, row.slurm_job_id, row.restart_count))
            ended, used_ns = last.get(row.id, (None, None))
            # Only nodes report monotonic times. For a run without sessions, the end from a node is the last report.
            is_complete = row.end_mono_ns is not None if ended is None else (used_ns or 0) >= ended
            if key is not None and is_complete:
                found.add(key)
    return found


def _last_reports(connection: Connection, job_ids: list[int]) -> dict[int, tuple[int, int | None]]:
    """For each run with sessions: when its last session ended (NEVER_NS: it is running), and the end of its usage."""
    sessions = (
        select(SESSIONS.c.job_id, func.max(func.coalesce(SESSIONS.c.end_utc_ns, NEVER_NS)))
        .where(SESSIONS.c.job_id.in_(job_ids))
        .group_by(SESSIONS.c.job_id)
    )
    metered = (
        select(USAGE.c.job_id, func.max(USAGE.c.start_utc_ns + USAGE.c.span_ns))
        .where(USAGE.c.job_id.in_(job_ids))
        .group_by(USAGE.c.job_id)
    )
    until = {row[0]: int(row[1]) for row in connection.execute(metered)}
    return {row[0]: (int(row[1]), until.get(row[0])) for row in connection.execute(sessions)}


def _read_row(row: dict[str, str], cluster: str) -> SacctRow:
    """ValueError if the row is not what sacct prints for a job of `cluster`."""
    job_id, name = _integer(row["JobIDRaw"], ID_MAX), row.get("Cluster") or cluster
    if not job_id or name.lower() != cluster.lower():
        raise ValueError("not a job of this cluster")
    start_ns, end_ns, sluid = _utc_ns(row["Start"]), _utc_ns(row["End"]), row.get("SLUID", "")
    array, het = _ARRAY.fullmatch(row.get("JobID", "")), _HET.fullmatch(row.get("JobID", ""))
    comment = row.get("AdminComment", "")
    segment = parse_segment(comment) or AdmissionSegment()
    record = JobRecord(
        key=JobKey(cluster=name, job_id=job_id, sluid=clean_text(sluid) if sluid.startswith("s") else ""),
        source=Source.SLURM,
        user=clean_text(row.get("User", "")),
        uid=_integer(row.get("UID", ""), ID_MAX),
        account=clean_text(row.get("Account", "")),
        partition=clean_text(row.get("Partition", "")),
        qos=clean_text(row.get("QOS", "")),
        name=row.get("JobName", ""),
        # "CANCELLED by 1000" is a state and the user who cancelled the job.
        state=clean_text(row.get("State", "").partition(" ")[0]),
        exit_code=_integer(row.get("ExitCode", "").partition(":")[0]),
        signature=clean_text(segment.signature),
        admission=clean_text(segment.admission),
        array_job_id=_integer(array[1], ID_MAX) if array else None,
        array_task_id=_integer(array[2], ID_MAX) if array else None,
        het_job_id=_integer(het[1], ID_MAX) if het else None,
        het_offset=_integer(het[2], ID_MAX) if het else None,
        device_count=_device_count(row),
        submit_utc_ns=_optional_utc_ns(row.get("Submit", "")),
        eligible_utc_ns=_optional_utc_ns(row.get("Eligible", "")),
        start_utc_ns=start_ns,
        end_utc_ns=end_ns if start_ns is not None else None,
        suspended_ns=_seconds(row.get("Suspended", "")) * SECOND_NS,
    )
    elapsed_s = _integer(row.get("ElapsedRaw", ""), TIME_MAX_S) or 0
    return SacctRow(record=record, elapsed_s=elapsed_s, admin_comment=comment)


def _compare(key: JobKey, stored: Row, row: SacctRow, tolerance_s: int) -> list[JobMismatch]:
    found: list[JobMismatch] = []
    for name, theirs in (("user", row.record.user), ("account", row.record.account)):
        if stored[name] and theirs and stored[name] != theirs:
            found.append(JobMismatch(key, name, stored[name], theirs))
    ours, theirs = str(stored["device_count"]), str(row.record.device_count)
    if ours != theirs and stored["start_utc_ns"] is not None:
        found.append(JobMismatch(key, "gres/salus count", ours, theirs))
    if stored["elapsed_ns"] is not None and row.record.end_utc_ns is not None:
        ours_s = stored["elapsed_ns"] // SECOND_NS
        if abs(ours_s - row.elapsed_s) > tolerance_s:
            found.append(JobMismatch(key, "elapsed seconds", str(ours_s), str(row.elapsed_s)))
    if stored["elapsed_ns"] is not None and row.record.end_utc_ns is None and row.record.start_utc_ns is not None:
        found.append(JobMismatch(key, "end", "ended", "running"))
    return found


def _stored(
    database: Database, clusters: set[str], job_ids: set[int], window: tuple[int, int]
) -> dict[tuple[str, int, int], Row]:
    base = select(JOBS, CLUSTERS.c.name.label("cluster")).join(CLUSTERS, CLUSTERS.c.id == JOBS.c.cluster_id)
    found: dict[tuple[str, int, int], Row] = {}
    conditions: list[ColumnElement[bool]] = [
        (JOBS.c.start_utc_ns >= window[0]) & (JOBS.c.start_utc_ns < window[1]) & CLUSTERS.c.name.in_(sorted(clusters))
    ]
    conditions += [JOBS.c.slurm_job_id.in_(part) for part in chunks(sorted(job_ids))]
    with database.reading() as connection:
        for condition in conditions:
            for row in connection.execute(base.where(condition)).mappings():
                found[row["cluster"], row["slurm_job_id"], row["restart_count"]] = dict(row)
    return {run: row for run, row in found.items() if run[0] in clusters}


def _device_count(row: dict[str, str]) -> int:
    for name in ("AllocTRES", "ReqTRES"):
        for part in row.get(name, "").split(","):
            tres, _, count = part.partition("=")
            # A typed entry such as gres/salus:model=1 counts the same devices again.
            if tres == "gres/salus":
                return _integer(count) or 0
    return 0


def _integer(text: str, largest: int = NUMBER_MAX) -> int | None:
    """A number in ASCII digits; None if it is not one, or is too large."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(largest))):
        return None
    return int(text) if int(text) <= largest else None


def _utc_ns(text: str) -> int | None:
    """A time; None if it has not come yet, and ValueError if it is not a time."""
    if text.lower() in _NO_TIME:
        return None
    seconds = _integer(text, TIME_MAX_S)
    if seconds is None:
        seconds = int(datetime.fromisoformat(text).astimezone().timestamp())
    return max(0, seconds) * SECOND_NS


def _optional_utc_ns(text: str) -> int | None:
    try:
        return _utc_ns(text)
    except (ValueError, OverflowError):
        return None


def _seconds(text: str) -> int:
    match = _DURATION.fullmatch(text)
    if match is None:
        return 0
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return min(((days * 24 + hours) * 60 + minutes) * 60 + seconds, TIME_MAX_S)
