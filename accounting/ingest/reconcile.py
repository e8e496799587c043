"""Our jobs beside Slurm's own: fills what is missing, takes over Slurm's times, and tells what disagreed.

Reads `sacct -D -X -P` output. Slurm's word on when a job ran is final, so that held time agrees with
elapsed x allocation to the second; a difference beyond the tolerance is told before it is taken over.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec
from sqlalchemy import ColumnElement, Connection, func, select

from accounting.ingest.jobs import JOBS
from accounting.ingest.ledger import LedgerWriter
from accounting.ingest.usage import SESSIONS, USAGE
from accounting.records import JobKey, JobRecord, Record, Source, clean_text
from accounting.storage.catalog import CLUSTERS, Row
from accounting.storage.database import Database
from nodedaemon.core.errors import RequestError
from nodedaemon.wire.segment import AdmissionSegment, parse_segment

# What is asked of sacct; SLURM_TIME_FORMAT=%s makes its times seconds since the epoch.
SACCT_FIELDS = (
    "JobIDRaw,JobID,Cluster,User,UID,Account,Partition,QOS,JobName,State,ExitCode,Submit,Eligible,Start,End,ElapsedRaw,"
    "Suspended,AllocTRES,ReqTRES,AdminComment"
)
SACCT_OPTIONS = ("-a", "-D", "-X", "-P", "--delimiter=\x1f", "-o", SACCT_FIELDS)

SECOND_NS = 1_000_000_000
BATCH = 500
NEVER_NS = 2**62
_DURATION = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?")
_ARRAY = re.compile(r"(\d+)_(\d+)")
_HET = re.compile(r"(\d+)\+(\d+)")


class SacctRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run as sacct tells it; `held_s` is elapsed x gres/salus count."""

    record: JobRecord
    elapsed_s: int
    suspended_s: int
    device_count: int
    admin_comment: str = ""

    @property
    def held_s(self) -> int:
        return self.elapsed_s * self.device_count


@dataclass(frozen=True)
class Disagreement:
    """A run on which the two books differ."""

    job: JobKey
    what: str
    ours: str
    slurms: str


@dataclass
class Reconciled:
    """What came of a comparison. `unknown` are ours that sacct does not have."""

    compared_count: int = 0
    filled: list[JobKey] = field(default_factory=list)
    disagreements: list[Disagreement] = field(default_factory=list)
    unknown: list[JobKey] = field(default_factory=list)


def read_sacct(text: str, *, cluster: str) -> list[SacctRow]:
    """The runs with gres/salus in a table of sacct with a heading; `cluster` where the table does not name one."""
    lines = text.splitlines()
    if not lines:
        return []
    separator = "\x1f" if "\x1f" in lines[0] else "|"
    names = [name.strip() for name in lines[0].split(separator)]
    missing = {"JobIDRaw", "Start", "End", "AllocTRES"} - set(names)
    if missing:
        raise RequestError(
            f"sacct's table not read: heading: no {', '.join(sorted(missing))}; run sacct with -P -o {SACCT_FIELDS}"
        )
    tables: list[dict[str, str]] = []
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        # A job's name may hold the bar; sacct does not quote it, so a line with too many is not guessed at.
        cells = line.split(separator)
        if len(cells) != len(names):
            raise RequestError(f"sacct's table not read: line {number}: {len(cells)} columns, {len(names)} expected")
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
    """Compare `rows` with the jobs of `window`, and unless `is_dry` take Slurm's word into the database."""
    found = Reconciled(compared_count=len(rows))
    clusters = {row.record.key.cluster for row in rows}
    ours = _stored(database, clusters, {row.record.key.job_id for row in rows}, window)
    seen: set[tuple[str, int, int]] = set()
    for row in rows:
        key = row.record.key
        place = (key.cluster, key.job_id, key.restart_count)
        seen.add(place)
        stored = ours.get(place)
        if stored is None:
            found.filled.append(key)
        else:
            found.disagreements += _compare(key, stored, row, tolerance_s)
    found.unknown = [
        JobKey(cluster=place[0], job_id=place[1], restart_count=place[2]) for place in sorted(set(ours) - seen)
    ]
    if not is_dry:
        writer = LedgerWriter(database)
        records: list[Record] = [row.record for row in rows]
        for start in range(0, len(records), BATCH):
            writer.write(records[start : start + BATCH])
    return found


def held_seconds(database: Database, keys: Iterable[JobKey]) -> dict[JobKey, int]:
    """Held time of each run in whole seconds: what is held against sacct's elapsed x allocation."""
    wanted = {(key.cluster, key.job_id, key.restart_count): key for key in keys}
    statement = select(JOBS, CLUSTERS.c.name.label("cluster")).join(CLUSTERS, CLUSTERS.c.id == JOBS.c.cluster_id)
    statement = statement.where(JOBS.c.slurm_job_id.in_(sorted({place[1] for place in wanted})))
    with database.reading() as connection:
        rows = [dict(row) for row in connection.execute(statement).mappings()]
    found: dict[JobKey, int] = {}
    for row in rows:
        key = wanted.get((row["cluster"], row["slurm_job_id"], row["restart_count"]))
        if key is not None and row["elapsed_ns"] is not None:
            found[key] = row["elapsed_ns"] * row["device_count"] // SECOND_NS
    return found


def settled(database: Database, keys: Sequence[JobKey]) -> set[JobKey]:
    """The runs about which the nodes have said everything: all sessions ended, and usage known up to their end."""
    wanted = {(key.cluster, key.job_id, key.restart_count): key for key in keys}
    found: set[JobKey] = set()
    ids = sorted({place[1] for place in wanted})
    for start in range(0, len(ids), BATCH):
        part = ids[start : start + BATCH]
        with database.reading() as connection:
            runs = (
                select(JOBS.c.id, JOBS.c.slurm_job_id, JOBS.c.restart_count, JOBS.c.end_mono_ns, CLUSTERS.c.name)
                .join(CLUSTERS, CLUSTERS.c.id == JOBS.c.cluster_id)
                .where(JOBS.c.slurm_job_id.in_(part))
            )
            rows = connection.execute(runs).all()
            numbers = [row.id for row in rows]
            lasts = _lasts(connection, numbers)
        for row in rows:
            key = wanted.get((row.name, row.slurm_job_id, row.restart_count))
            ended, used_ns = lasts.get(row.id, (None, None))
            # Only a node has a monotonic clock: without sessions its word on the end is all there is to come.
            is_whole = row.end_mono_ns is not None if ended is None else (used_ns or 0) >= ended
            if key is not None and is_whole:
                found.add(key)
    return found


def _lasts(connection: Connection, numbers: list[int]) -> dict[int, tuple[int, int | None]]:
    """Of each run with sessions: when the last of them ended (NEVER_NS: it goes on), and until when it was metered."""
    sessions = (
        select(SESSIONS.c.job_id, func.max(func.coalesce(SESSIONS.c.end_utc_ns, NEVER_NS)))
        .where(SESSIONS.c.job_id.in_(numbers))
        .group_by(SESSIONS.c.job_id)
    )
    metered = (
        select(USAGE.c.job_id, func.max(USAGE.c.start_utc_ns + USAGE.c.span_ns))
        .where(USAGE.c.job_id.in_(numbers))
        .group_by(USAGE.c.job_id)
    )
    until = {row[0]: int(row[1]) for row in connection.execute(metered)}
    return {row[0]: (int(row[1]), until.get(row[0])) for row in connection.execute(sessions)}


def _numbered(tables: list[dict[str, str]], cluster: str) -> list[SacctRow]:
    """Runs of one job in the order in which they started: -D lists each requeue, and the last field has no number."""
    order = sorted(tables, key=lambda table: (int(table["JobIDRaw"]), _moment(table["Start"]) or 2**62))
    counts: dict[tuple[str, str], int] = {}
    rows: list[SacctRow] = []
    for table in order:
        name = table.get("Cluster") or cluster
        place = (name, table["JobIDRaw"])
        restart_count = int(table["Restarts"]) if table.get("Restarts", "").isdigit() else counts.get(place, 0)
        counts[place] = counts.get(place, 0) + 1
        rows.append(_row(table, name, restart_count))
    return rows


def _row(table: dict[str, str], cluster: str, restart_count: int) -> SacctRow:
    start_ns, end_ns = _moment(table["Start"]), _moment(table["End"])
    suspended_s = _duration(table.get("Suspended", ""))
    elapsed_s = int(table["ElapsedRaw"]) if table.get("ElapsedRaw", "").isdigit() else 0
    array, het = _ARRAY.fullmatch(table.get("JobID", "")), _HET.fullmatch(table.get("JobID", ""))
    comment = table.get("AdminComment", "")
    segment = parse_segment(comment) or AdmissionSegment()
    count = _device_count(table)
    code = table.get("ExitCode", "").partition(":")[0]
    record = JobRecord(
        key=JobKey(cluster=cluster, job_id=int(table["JobIDRaw"]), restart_count=restart_count, sluid=_sluid(table)),
        source=Source.SLURM,
        user=clean_text(table.get("User", "")),
        uid=int(table["UID"]) if table.get("UID", "").isdigit() else None,
        account=clean_text(table.get("Account", "")),
        partition=clean_text(table.get("Partition", "")),
        qos=clean_text(table.get("QOS", "")),
        name=table.get("JobName", ""),
        # "CANCELLED by 1000" is a state and who did it.
        state=clean_text(table.get("State", "").partition(" ")[0]),
        exit_code=int(code) if code.isdigit() else None,
        signature=clean_text(segment.signature),
        admission=clean_text(segment.admission),
        array_job_id=int(array[1]) if array else None,
        array_task_id=int(array[2]) if array else None,
        het_job_id=int(het[1]) if het else None,
        het_offset=int(het[2]) if het else None,
        device_count=count,
        submit_utc_ns=_moment(table.get("Submit", "")),
        eligible_utc_ns=_moment(table.get("Eligible", "")),
        start_utc_ns=start_ns,
        end_utc_ns=end_ns if start_ns is not None else None,
        suspended_ns=suspended_s * SECOND_NS,
    )
    return SacctRow(
        record=record, elapsed_s=elapsed_s, suspended_s=suspended_s, device_count=count, admin_comment=comment
    )


def _compare(key: JobKey, stored: Row, row: SacctRow, tolerance_s: int) -> list[Disagreement]:
    found: list[Disagreement] = []
    for name, theirs in (("user", row.record.user), ("account", row.record.account)):
        if stored[name] and theirs and stored[name] != theirs:
            found.append(Disagreement(key, name, stored[name], theirs))
    if stored["device_count"] != row.device_count and stored["start_utc_ns"] is not None:
        found.append(Disagreement(key, "gres/salus count", str(stored["device_count"]), str(row.device_count)))
    if stored["elapsed_ns"] is not None and row.record.end_utc_ns is not None:
        ours_s = stored["elapsed_ns"] // SECOND_NS
        if abs(ours_s - row.elapsed_s) > tolerance_s:
            found.append(Disagreement(key, "elapsed seconds", str(ours_s), str(row.elapsed_s)))
    if stored["elapsed_ns"] is not None and row.record.end_utc_ns is None and row.record.start_utc_ns is not None:
        found.append(Disagreement(key, "end", "ended", "running"))
    return found


def _stored(
    database: Database, clusters: set[str], job_ids: set[int], window: tuple[int, int]
) -> dict[tuple[str, int, int], Row]:
    base = select(JOBS, CLUSTERS.c.name.label("cluster")).join(CLUSTERS, CLUSTERS.c.id == JOBS.c.cluster_id)
    found: dict[tuple[str, int, int], Row] = {}
    wanted = sorted(job_ids)
    conditions: list[ColumnElement[bool]] = [
        (JOBS.c.start_utc_ns >= window[0]) & (JOBS.c.start_utc_ns < window[1]) & CLUSTERS.c.name.in_(sorted(clusters))
    ]
    conditions += [JOBS.c.slurm_job_id.in_(wanted[start : start + BATCH]) for start in range(0, len(wanted), BATCH)]
    with database.reading() as connection:
        for condition in conditions:
            for row in connection.execute(base.where(condition)).mappings():
                found[row["cluster"], row["slurm_job_id"], row["restart_count"]] = dict(row)
    return {place: row for place, row in found.items() if place[0] in clusters}


def _device_count(table: dict[str, str]) -> int:
    for name in ("AllocTRES", "ReqTRES"):
        for part in table.get(name, "").split(","):
            tres, _, count = part.partition("=")
            # gres/salus:model=1 repeats the count by type.
            if tres == "gres/salus" and count.isdigit():
                return int(count)
    return 0


def _sluid(table: dict[str, str]) -> str:
    return table.get("SLUID", "") if table.get("SLUID", "").startswith("s") else ""


def _moment(text: str) -> int | None:
    if text.isdigit():
        return int(text) * SECOND_NS
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp()) * SECOND_NS
    except ValueError:
        # Unknown, None, N/A: it has not happened yet.
        return None


def _duration(text: str) -> int:
    match = _DURATION.fullmatch(text)
    if match is None:
        return 0
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
