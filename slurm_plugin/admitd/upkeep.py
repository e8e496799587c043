"""The background work of salus-admitd: compares accounting with Slurm's, writes summaries, and purges old records.

It runs in a thread of its own, because every step waits for Slurm or the database, and no submission may wait for
that. The process may end at any step, because each step is a transaction or can be repeated.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from accounting.ingest.ledger import LedgerWriter
from accounting.ingest.reconcile import SacctRow, reconcile
from accounting.records import JobKey
from accounting.storage import retention
from accounting.storage.database import Database
from nodedaemon.config import Config
from nodedaemon.core.errors import SalusError
from nodedaemon.core.types import SECOND_NS
from nodedaemon.wire.envelope import UnreachableError
from slurm_plugin.slurm.cli import SlurmCommands
from slurm_plugin.slurm.sacct import read_accounts, read_runs, store_summaries

log = structlog.get_logger()

# The first round also covers jobs that ended while the service was down.
FIRST_LOOK_BACK_NS = 24 * 3600 * SECOND_NS
# slurmdbd may learn late that a job has ended, if it was down itself.
LOOK_BACK_NS = 15 * 60 * SECOND_NS
ACCOUNTS_INTERVAL_NS = 3600 * SECOND_NS
# Not in the first minutes, but soon enough for a service that is restarted every day.
FIRST_RETENTION_NS = 10 * 60 * SECOND_NS
STOP_WAIT_S = 2.0


@dataclass
class UpkeepCounters:
    """The counts that the metrics export."""

    summary_count: int = 0
    left_out_count: int = 0
    skipped_count: int = 0
    failure_count: int = 0


class Upkeep:
    """`open_database` raises OperatingError if it fails. `compare` and `retain` each run one round."""

    def __init__(self, config: Config, open_database: Callable[[], Database], commands: SlurmCommands) -> None:
        self._config = config
        self._open_database = open_database
        self._commands = commands
        self._written: dict[JobKey, SacctRow] = {}
        self._compared_utc_ns = 0
        self._accounts_utc_ns = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)
        self.counters = UpkeepCounters()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(STOP_WAIT_S)

    def compare(self, now_ns: int) -> None:
        """Correct our records from Slurm's for the runs since the last round, and write summaries of ended jobs."""
        back_ns = LOOK_BACK_NS if self._compared_utc_ns else FIRST_LOOK_BACK_NS
        window = ((self._compared_utc_ns or now_ns) - back_ns, now_ns)
        table = read_runs(self._commands, window, cluster=self._config.settings.cluster.name)
        database = self._open_database()
        rows, skipped = table.rows, self._correct(database, table.rows, window)
        self._written = {row.record.key: row for row in rows if row.record.key not in skipped}
        self._compared_utc_ns = now_ns
        self._report_skipped(table.bad_count + len(skipped))
        stored = store_summaries(self._commands, self._config, database, rows, now_utc_ns=now_ns)
        self.counters.summary_count += stored.count
        self.counters.left_out_count = stored.left_out_count
        self.counters.failure_count += len(stored.failures)
        for failure in stored.failures:
            log.warning("summary not stored", reason=failure)
        if now_ns - self._accounts_utc_ns >= ACCOUNTS_INTERVAL_NS:
            self._accounts_utc_ns = now_ns
            LedgerWriter(database).write(read_accounts(self._commands, now_utc_ns=now_ns))

    def _correct(self, database: Database, rows: list[SacctRow], window: tuple[int, int]) -> set[JobKey]:
        """Write the rows that have changed, and return those that could not be stored."""
        # A running job appears in every round.
        changed = [row for row in rows if self._written.get(row.record.key) != row]
        if not changed:
            return set()
        try:
            found = reconcile(database, changed, window=window)
        except UnreachableError:
            # The next round covers this time again.
            raise
        except Exception:
            # A row that we fail on must not be in every later window, or no job would be compared any more.
            self._compared_utc_ns = window[1]
            raise
        for mismatch in found.disagreements:
            log.info("records corrected", job=mismatch.job.job_id, what=mismatch.what, ours=mismatch.ours,
                     slurms=mismatch.slurms)  # fmt: skip
        return set(found.skipped)

    def _report_skipped(self, count: int) -> None:
        if count and count != self.counters.skipped_count:
            log.warning("rows of sacct skipped: they could not be read or stored", count=count)
        self.counters.skipped_count = count

    def retain(self, now_ns: int) -> None:
        """Roll up and purge old records by RollUpAfter and PurgeAfter."""
        storage = self._config.settings.storage
        if storage.roll_up_after_ns:
            before_count, after_count = retention.roll_up(self._open_database(), now_ns - storage.roll_up_after_ns)
            if before_count > after_count:
                log.info("usage rolled up", rows=before_count, left=after_count)
        if storage.purge_after_ns:
            purged = retention.purge(self._open_database(), now_ns - storage.purge_after_ns)
            if any(purged.values()):
                log.info("old records purged", **purged)

    def _run(self) -> None:
        storage = self._config.settings.storage
        now_ns = time.monotonic_ns()
        compare_ns, retain_ns = storage.accounting_interval_ns, storage.retention_interval_ns
        tasks = [
            (now_ns + compare_ns, compare_ns, self.compare, "accounting not compared with Slurm"),
            (now_ns + min(retain_ns, FIRST_RETENTION_NS), retain_ns, self.retain, "retention not done"),
        ]
        tasks = [task for task in tasks if task[1]]
        while tasks:
            tasks.sort(key=lambda task: task[0])
            due_ns, every_ns, work, what = tasks[0]
            if self._stopped.wait(max(0.0, (due_ns - time.monotonic_ns()) / SECOND_NS)):
                return
            try:
                work(time.time_ns())
            except SalusError as error:
                self.counters.failure_count += 1
                log.warning(what, reason=str(error))
            except Exception:  # the top of a thread: one failed round must not prevent the next
                self.counters.failure_count += 1
                log.exception(what)
            tasks[0] = (time.monotonic_ns() + every_ns, every_ns, work, what)
