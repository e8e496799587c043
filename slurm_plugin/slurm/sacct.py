"""Slurm's accounting: reads runs and accounts, and writes our summary into a job's AdminComment.

It reads with `sacct`, `squeue` and `sacctmgr`. It writes with `scontrol`, or with `sacctmgr` if slurmctld no longer
accepts changes to the job. Words of other tools are never lost: both slurmctld and slurmdbd are read just before a
write. `sacctmgr` stores everything in lower case (seen on 22.05), so a comment that would be damaged is left as it is.
Calls block; a service makes them in a thread.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from accounting.ingest import accounts
from accounting.ingest.reconcile import SACCT_FIELDS, SACCT_OPTIONS, SacctRow, SacctTable, read_rows, settled
from accounting.records import AccountRecord, JobKey
from accounting.reports.job_page import job_pages
from accounting.reports.selection import JobSelector
from accounting.reports.summary import is_ours, merge_comments, merge_summary, summarized_run, summary_segment
from accounting.reports.values import JobPage
from accounting.storage.database import Database
from accounting.viewer import OPERATOR
from nodedaemon.config import Config
from nodedaemon.config.keys import Slurm as SlurmSettings
from nodedaemon.core.errors import OperatingError, SalusError
from nodedaemon.core.types import SECOND_NS
from nodedaemon.wire.delimited import new_delimiter, split_rows, squeue_format, squeue_rows
from nodedaemon.wire.envelope import UnreachableError
from slurm_plugin.slurm.cli import SlurmCommands

# sacct may read a day of a large site; no user waits for it.
SACCT_TIMEOUT_S = 120.0
# Per round; each summary costs three commands.
SUMMARIES_MAX = 200
# How long after UsageInterval the last usage of a job may still be in a ledger or spool.
ARRIVAL_NS = 60 * SECOND_NS
# squeue cuts a longer comment off.
COMMENT_LENGTH_MAX = 1 << 16
COMMENT_COLUMNS = (("JobID", 32), ("admin_comment", COMMENT_LENGTH_MAX))


class CommentDamageError(OperatingError):
    """The only way to change a job's comment would damage another tool's words in it."""


@dataclass
class StoredSummaries:
    """How many summaries were written, how many were left out to protect other tools' words, and why others failed."""

    count: int = 0
    left_out_count: int = 0
    failures: list[str] = field(default_factory=list)


def accounting_commands(settings: SlurmSettings) -> SlurmCommands:
    """Slurm's commands with times in seconds since the epoch and a time-out that suits a database."""
    timeout_s = max(settings.timeout_ns / SECOND_NS, SACCT_TIMEOUT_S)
    return SlurmCommands(settings.bin_dir, timeout_s, {**os.environ, "SLURM_TIME_FORMAT": "%s"})


def read_table(commands: SlurmCommands, fields: str, *options: str) -> list[dict[str, str]]:
    """The rows of sacct by field."""
    names, delimiter = fields.split(","), new_delimiter()
    text = commands.run("sacct", "-n", "-p", f"--delimiter={delimiter}", *options, "-o", fields)
    return [dict(zip(names, row, strict=True)) for row in split_rows(text, delimiter, len(names))]


def read_runs(commands: SlurmCommands, window: tuple[int, int], *, cluster: str) -> SacctTable:
    """The runs with gres/salus that Slurm counts in the window."""
    edges = [datetime.fromtimestamp(edge_ns // SECOND_NS).strftime("%Y-%m-%dT%H:%M:%S") for edge_ns in window]
    rows = read_table(commands, SACCT_FIELDS, *SACCT_OPTIONS, "-S", edges[0], "-E", edges[1])
    return read_rows(rows, cluster=cluster)


def read_accounts(commands: SlurmCommands, *, now_utc_ns: int) -> list[AccountRecord]:
    """Slurm's accounts, each with its parent."""
    return accounts.read_associations(commands.run("sacctmgr", *accounts.SACCTMGR_ARGUMENTS), now_utc_ns=now_utc_ns)


def store_summaries(
    commands: SlurmCommands, config: Config, database: Database, rows: Sequence[SacctRow], *, now_utc_ns: int
) -> StoredSummaries:
    """Add a summary to finished jobs that have none, at most SUMMARIES_MAX.

    A summary waits for the job's usage, but not forever: a node may be down.
    """
    # A requeued job has one comment: its last run counts.
    latest = {row.record.key.job_id: row for row in sorted(rows, key=lambda row: row.record.key)}
    wanted = [row for row in latest.values() if row.record.end_utc_ns is not None and row.record.state != "REQUEUED"]
    wanted = [row for row in wanted if summarized_run(row.admin_comment) != row.record.key.restart_count]
    wanted = [row for row in wanted if config.for_partition(row.record.partition).storage.is_summary_written]
    whole = settled(database, [row.record.key for row in wanted])
    patience_ns = config.settings.storage.usage_interval_ns + ARRIVAL_NS
    stored = StoredSummaries()
    ready = [
        row
        for row in wanted
        if row.record.key in whole or now_utc_ns - (row.record.end_utc_ns or now_utc_ns) > patience_ns
    ]
    for row in ready[:SUMMARIES_MAX]:
        key = row.record.key
        try:
            store_summary(commands, _page_of(database, key, now_utc_ns))
            stored.count += 1
        except CommentDamageError:
            stored.left_out_count += 1
        except UnreachableError:
            raise
        except SalusError as error:
            stored.failures.append(f"job {key.job_id}: {error}")
    return stored


def _page_of(database: Database, key: JobKey, now_utc_ns: int) -> JobPage:
    selector = JobSelector(job_id=key.job_id)
    for page in job_pages(database, OPERATOR, selector, now_utc_ns=now_utc_ns, clusters=(key.cluster,)):
        if (page.job_id, page.restart_count) == (key.job_id, key.restart_count):
            return page
    raise OperatingError(f"run {key.restart_count} is not in the database; see the log of salus-admitd")


def store_summary(commands: SlurmCommands, page: JobPage) -> str:
    """Write a summary into the job's AdminComment; returns the new comment."""
    # Use Slurm's own name, such as 5_3 or 5+1: the job id of one task is that of its array, which would mean all tasks.
    name = page.job
    rows = read_table(commands, "JobIDRaw,AdminComment", "-X", "-j", name)
    stored = next((row["AdminComment"] for row in rows if row["JobIDRaw"] == str(page.job_id)), "")
    comment = merge_comments(stored, _current_comment(commands, name, page.job_id))
    merged = merge_summary(comment, summary_segment(page))
    try:
        commands.run("scontrol", "update", f"JobId={name}", f"AdminComment={merged}")
    except OperatingError:
        # slurmctld has forgotten the job, or it does not change ended jobs (22.05).
        others = [word for word in comment.split() if not is_ours(word) and word != word.lower()]
        if others:
            raise CommentDamageError(
                f"summary not stored: job {name}: sacctmgr would write {others[0][:40]!r} of another tool in "
                "lower case; nothing was changed"
            ) from None
        where = ("where", f"jobid={name}", "set", f"AdminComment={merged}")
        commands.run("sacctmgr", "-i", "modify", "job", *where)
    return merged


def _current_comment(commands: SlurmCommands, name: str, job_id: int) -> str:
    """The comment that slurmctld still has; empty if it has forgotten the job."""
    delimiter = new_delimiter()
    # Not `scontrol show job`: in its output, the name of a job can pass for a line with another AdminComment.
    options = ("--noheader", "--states=all", f"--jobs={name}", squeue_format(COMMENT_COLUMNS, delimiter))
    try:
        text = commands.run("squeue", *options)
    except OperatingError:
        return ""
    rows = squeue_rows(text, COMMENT_COLUMNS, delimiter)
    comment = next((comment for number, comment in rows if number == str(job_id)), "")
    if len(comment) >= COMMENT_LENGTH_MAX:
        raise CommentDamageError(f"summary not stored: job {name}: its AdminComment is too long to be kept as it is")
    return comment
