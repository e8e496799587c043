"""Slurm's accounting: reads runs and accounts, and writes our summary into a job's AdminComment.

It reads with `sacct` and `sacctmgr`. It writes with `scontrol`, or with `sacctmgr` if slurmctld no longer accepts
changes to the job. Words of other tools are never lost: both slurmctld and slurmdbd are read just before a write.
`sacctmgr` stores everything in lower case (seen on 22.05), so a comment that would be damaged is left as it is. Calls
block; a service makes them in a thread.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from accounting.ingest import accounts
from accounting.ingest.reconcile import SACCT_OPTIONS, SacctRow, read_sacct, settled
from accounting.records import AccountRecord
from accounting.reports.job_page import job_pages
from accounting.reports.selection import JobSelector
from accounting.reports.summary import is_ours, merge_comments, merge_summary, summarized_run, summary_segment
from accounting.reports.values import JobPage
from accounting.storage.database import Database
from accounting.viewer import OPERATOR
from nodedaemon.config import Config
from nodedaemon.config.keys import Slurm as SlurmSettings
from nodedaemon.core.errors import OperatingError
from nodedaemon.core.types import SECOND_NS
from slurm_plugin.slurm.cli import SlurmCommands

# sacct may read a day of a large site; no user waits for it.
SACCT_TIMEOUT_S = 120.0
# Per round; each summary costs three commands.
SUMMARIES_MAX = 200
# How long after UsageInterval the last usage of a job may still be in a ledger or spool.
ARRIVAL_NS = 60 * SECOND_NS


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


def read_runs(commands: SlurmCommands, window: tuple[int, int], *, cluster: str) -> list[SacctRow]:
    """The runs with gres/salus that Slurm counts in the window."""
    edges = [datetime.fromtimestamp(edge_ns // SECOND_NS).strftime("%Y-%m-%dT%H:%M:%S") for edge_ns in window]
    return read_sacct(commands.run("sacct", *SACCT_OPTIONS, "-S", edges[0], "-E", edges[1]), cluster=cluster)


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
        pages = job_pages(
            database, OPERATOR, JobSelector(job_id=key.job_id), now_utc_ns=now_utc_ns, clusters=(key.cluster,)
        )
        page = next(page for page in pages if (page.job_id, page.restart_count) == (key.job_id, key.restart_count))
        try:
            store_summary(commands, page)
            stored.count += 1
        except CommentDamageError:
            stored.left_out_count += 1
        except OperatingError as error:
            stored.failures.append(f"job {key.job_id}: {error}")
    return stored


def store_summary(commands: SlurmCommands, page: JobPage) -> str:
    """Write a summary into the job's AdminComment; returns the new comment."""
    # Use Slurm's own name, such as 5_3 or 5+1: the job id of one task is that of its array, which would mean all tasks.
    name = page.job
    lines = commands.run("sacct", "-X", "-n", "-P", "-j", name, "-o", "JobIDRaw,AdminComment").splitlines()
    stored = next((line.partition("|")[2] for line in lines if line.startswith(f"{page.job_id}|")), "")
    comment = merge_comments(stored, _current_comment(commands, name))
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


def _current_comment(commands: SlurmCommands, name: str) -> str:
    """The comment that slurmctld still has; empty if it has forgotten the job."""
    try:
        shown = commands.run("scontrol", "show", "job", name)
    except OperatingError:
        return ""
    lines = (line.strip() for line in shown.splitlines())
    return next((line.partition("=")[2] for line in lines if line.startswith("AdminComment=")), "")
