"""Compares the jobs in the database with Slurm's: adds missing jobs, adopts Slurm's times, and reports differences.

Reads the output of `sacct -D -X -P`. Slurm decides when a job ran, so that held time equals elapsed x allocation to
the second. A difference beyond the tolerance is reported before Slurm's value replaces ours.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec
from sqlalchemy import ColumnElement, Connection, func, select

from accounting.ingest.ledger import LedgerWriter
from accounting.records import JobKey, JobRecord, Source, clean_text
from accounting.storage.catalog import Row
from accounting.storage.database import Database, chunks
from accounting.storage.tables import CLUSTERS, JOBS, SESSIONS, USAGE
from nodedaemon.core.errors import RequestError
from nodedaemon.core.types import SECOND_NS
from nodedaemon.wire.segment import AdmissionSegment, parse_segment

# The fields that we request. With SLURM_TIME_FORMAT=%s, sacct prints times as seconds since the epoch.
SACCT_FIELDS = (
    "JobIDRaw,JobID,Cluster,User,UID,Account,Partition,QOS,JobName,State,ExitCode,Submit,Eligible,Start,End,ElapsedRaw,"
    "Suspended,AllocTRES,ReqTRES,AdminComment"
)
SACCT_OPTIONS = ("-a", "-D", "-X", "-P", "--delimiter=\x1f", "-o", SACCT_FIELDS)

NEVER_NS = 2**62
_DURATION = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?")
_ARRAY = re.compile(r"(\d+)_(\d+)")
_HET = re.compile(r"(\d+)\+(\d+)")


class SacctRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run as sacct reports it."""

    record: JobRecord
    elapsed_s: int
    admin_comment: str = ""


@dataclass(frozen=True)
class JobMismatch:
    """A run whose values differ between our database and Slurm's."""

    job: JobKey
    what: str
    ours: str
    slurms: str


@dataclass
class Reconciled:
    """The result of a comparison. `filled` were missing from our database, `unknown` from sacct."""

    compared_count: int = 0
    filled: list[JobKey] = field(default_factory=list)
    disagreements: list[JobMismatch] = field(default_factory=list)
    unknown: list[JobKey] = field(default_factory=list)


def read_sacct(text: str, *, cluster: str) -> list[SacctRow]:
    """The runs with gres/salus in sacct's output, including its heading. `cluster` is for rows that name no cluster."""
    lines = text.splitlines()
    if not lines:
        return []
    separator = "\x1f" if "\x1f" in lines[0] else "|"
    names = [name.strip() for name in lines[0].split(separator)]
    missing = {"JobIDRaw", "Start", "End", "AllocTRES"} - set(names)
    if missing:
        raise RequestError(
            f"cannot read sacct output: the heading lacks {', '.join(sorted(missing))}; "
            f"run sacct with -P -o {SACCT_FIELDS}"
        )
    tables: list[dict[str, str]] = []
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        # A job's name may contain the separator, which sacct does not quote. Reject such a line rather than guess.
        cells = line.split(separator)
        if len(cells) != len(names):
            raise RequestError(f"cannot read sacct output: line {number} has {len(cells)} columns, not {len(names)}")
        tables.append(dict(zip(names, cells, strict=True)))
    return _numbered([table for table in tables if _device_count(table)], cluster)


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
        writer = LedgerWriter(database)
        for part in chunks(rows):
            writer.write([row.record for row in part])
    return found


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


def _numbered(tables: list[dict[str, str]], cluster: str) -> list[SacctRow]:
    """Number the runs of each job in the order of their starts: -D lists every requeue, but without a number."""
    order = sorted(tables, key=lambda table: (int(table["JobIDRaw"]), _utc_ns(table["Start"]) or NEVER_NS))
    counts: Counter[tuple[str, str]] = Counter()
    rows: list[SacctRow] = []
    for table in order:
        name = table.get("Cluster") or cluster
        job = (name, table["JobIDRaw"])
        restart_count = _integer(table.get("Restarts", ""))
        if restart_count is None:
            restart_count = counts[job]
        counts[job] += 1
        rows.append(_row(table, name, restart_count))
    return rows


def _row(table: dict[str, str], cluster: str, restart_count: int) -> SacctRow:
    start_ns, sluid = _utc_ns(table["Start"]), table.get("SLUID", "")
    array, het = _ARRAY.fullmatch(table.get("JobID", "")), _HET.fullmatch(table.get("JobID", ""))
    comment = table.get("AdminComment", "")
    segment = parse_segment(comment) or AdmissionSegment()
    record = JobRecord(
        key=JobKey(
            cluster=cluster,
            job_id=int(table["JobIDRaw"]),
            restart_count=restart_count,
            sluid=sluid if sluid.startswith("s") else "",
        ),
        source=Source.SLURM,
        user=clean_text(table.get("User", "")),
        uid=_integer(table.get("UID", "")),
        account=clean_text(table.get("Account", "")),
        partition=clean_text(table.get("Partition", "")),
        qos=clean_text(table.get("QOS", "")),
        name=table.get("JobName", ""),
        # "CANCELLED by 1000" is a state and the user who cancelled the job.
        state=clean_text(table.get("State", "").partition(" ")[0]),
        exit_code=_integer(table.get("ExitCode", "").partition(":")[0]),
        signature=clean_text(segment.signature),
        admission=clean_text(segment.admission),
        array_job_id=int(array[1]) if array else None,
        array_task_id=int(array[2]) if array else None,
        het_job_id=int(het[1]) if het else None,
        het_offset=int(het[2]) if het else None,
        device_count=_device_count(table),
        submit_utc_ns=_utc_ns(table.get("Submit", "")),
        eligible_utc_ns=_utc_ns(table.get("Eligible", "")),
        start_utc_ns=start_ns,
        end_utc_ns=_utc_ns(table["End"]) if start_ns is not None else None,
        suspended_ns=_seconds(table.get("Suspended", "")) * SECOND_NS,
    )
    return SacctRow(record=record, elapsed_s=_integer(table.get("ElapsedRaw", "")) or 0, admin_comment=comment)


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


def _device_count(table: dict[str, str]) -> int:
    for name in ("AllocTRES", "ReqTRES"):
        for part in table.get(name, "").split(","):
            tres, _, count = part.partition("=")
            # A typed entry such as gres/salus:model=1 counts the same devices again.
            if tres == "gres/salus" and count.isdigit():
                return int(count)
    return 0


def _integer(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _utc_ns(text: str) -> int | None:
    if text.isdigit():
        return int(text) * SECOND_NS
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp()) * SECOND_NS
    except ValueError:
        # sacct prints Unknown, None or N/A for what has not happened yet.
        return None


def _seconds(text: str) -> int:
    match = _DURATION.fullmatch(text)
    if match is None:
        return 0
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
