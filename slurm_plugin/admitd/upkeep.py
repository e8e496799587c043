"""What salus-admitd does beside its answers: compares the books with Slurm's, adds summaries, keeps the database small.

A thread of its own, because every step waits for Slurm or the database; no submit waits for it, and it ends with the
process wherever it stands: each step is a transaction or may be done again.
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
from slurm_plugin.slurm.cli import SlurmCommands
from slurm_plugin.slurm.sacct import accounting_commands, read_accounts, read_runs, store_summaries

log = structlog.get_logger()

# After a start: what ended while nobody looked.
FIRST_LOOK_BACK_NS = 24 * 3600 * SECOND_NS
# slurmdbd hears of an end late where it was away itself.
LOOK_BACK_NS = 15 * 60 * SECOND_NS
ACCOUNTS_INTERVAL_NS = 3600 * SECOND_NS
# Retention is no matter of the first minutes, but a service that is restarted every day must come to it.
FIRST_RETENTION_NS = 10 * 60 * SECOND_NS
STOP_WAIT_S = 2.0


@dataclass
class Counters:
    """What metrics export of the upkeep."""

    compared_count: int = 0
    summary_count: int = 0
    left_out_count: int = 0
    failure_count: int = 0
    rolled_up_count: int = 0
    purged_count: int = 0


class Upkeep:
    """`database` opens it, or raises OperatingError. `compare` and `retain` are one round each, for tests as well."""

    def __init__(
        self,
        config: Config,
        database: Callable[[], Database],
        commands: SlurmCommands | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._config = config
        self._database = database
        self._commands = commands or accounting_commands(config.settings.slurm)
        self._clock = clock
        self._written: dict[JobKey, SacctRow] = {}
        self._compared_utc_ns = 0
        self._accounts_utc_ns = 0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.counters = Counters()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(STOP_WAIT_S)

    @property
    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def compare(self) -> None:
        """Take Slurm's word on the runs since the last round into the database, and sum up those that ended."""
        now_ns = self._clock()
        back_ns = LOOK_BACK_NS if self._compared_utc_ns else FIRST_LOOK_BACK_NS
        window = ((self._compared_utc_ns or now_ns) - back_ns, now_ns)
        rows = read_runs(self._commands, window, cluster=self._config.settings.cluster.name)
        database = self._database()
        # What was written before and is the same is not written again: a running job is told of in every round.
        changed = [row for row in rows if self._written.get(row.record.key) != row]
        if changed:
            found = reconcile(database, changed, window=window)
            for one in found.disagreements:
                log.info("books differed", job=one.job.job_id, what=one.what, ours=one.ours, slurms=one.slurms)
        self._written = {row.record.key: row for row in rows}
        self._compared_utc_ns = now_ns
        self.counters.compared_count += len(changed)
        stored = store_summaries(self._commands, self._config, database, rows, now_utc_ns=now_ns)
        self.counters.summary_count += stored.count
        self.counters.left_out_count = stored.left_out_count
        self.counters.failure_count += len(stored.failures)
        for failure in stored.failures:
            log.warning("summary not stored", reason=failure)
        if now_ns - self._accounts_utc_ns >= ACCOUNTS_INTERVAL_NS:
            self._accounts_utc_ns = now_ns
            LedgerWriter(database).write(read_accounts(self._commands, now_utc_ns=now_ns))

    def retain(self) -> None:
        """Roll up and purge as RollUpAfter and PurgeAfter say."""
        storage, now_ns = self._config.settings.storage, self._clock()
        if storage.roll_up_after_ns:
            rolled = retention.roll_up(self._database(), now_ns - storage.roll_up_after_ns)
            self.counters.rolled_up_count += rolled.before_count - rolled.after_count
            if rolled.before_count > rolled.after_count:
                log.info("usage rolled up", rows=rolled.before_count, left=rolled.after_count)
        if storage.purge_after_ns:
            purged = retention.purge(self._database(), now_ns - storage.purge_after_ns)
            self.counters.purged_count += purged.counts["jobs"]
            if any(purged.counts.values()):
                log.info("old records purged", **purged.counts)

    def _run(self) -> None:
        storage = self._config.settings.storage
        start_ns = time.monotonic_ns()
        tasks: list[tuple[str, Callable[[], None], int, int]] = []
        if storage.accounting_interval_ns:
            every_ns = storage.accounting_interval_ns
            tasks.append(("books not compared", self.compare, every_ns, start_ns + every_ns))
        if storage.retention_interval_ns:
            every_ns = storage.retention_interval_ns
            tasks.append(("retention not done", self.retain, every_ns, start_ns + min(every_ns, FIRST_RETENTION_NS)))
        while tasks:
            tasks.sort(key=lambda task: task[3])
            what, work, every_ns, due_ns = tasks[0]
            if self._stopped.wait(max(0.0, (due_ns - time.monotonic_ns()) / SECOND_NS)):
                return
            try:
                work()
            except SalusError as error:
                self.counters.failure_count += 1
                log.warning(what, reason=str(error))
            except Exception:  # the top of a thread: one round may not end all later ones
                self.counters.failure_count += 1
                log.exception(what)
            tasks[0] = (what, work, every_ns, time.monotonic_ns() + every_ns)
