"""Held time of job runs in whole seconds: as sacct reports it, and as our database has it."""

from collections.abc import Iterable

from sqlalchemy import select

from accounting.ingest.reconcile import SECOND_NS, SacctRow
from accounting.records import JobKey
from accounting.storage.database import Database
from accounting.storage.tables import CLUSTERS, JOBS


def sacct_held_s(row: SacctRow) -> int:
    """Elapsed time x gres/salus count."""
    return row.elapsed_s * row.record.device_count


def stored_held_s(database: Database, keys: Iterable[JobKey]) -> dict[JobKey, int]:
    """Held time of each run that has ended."""
    wanted = {(key.cluster, key.job_id, key.restart_count): key for key in keys}
    statement = (
        select(CLUSTERS.c.name, JOBS.c.slurm_job_id, JOBS.c.restart_count, JOBS.c.elapsed_ns * JOBS.c.device_count)
        .join(CLUSTERS, CLUSTERS.c.id == JOBS.c.cluster_id)
        .where(JOBS.c.elapsed_ns.is_not(None))
    )
    with database.reading() as connection:
        rows = [tuple(row) for row in connection.execute(statement)]
    return {wanted[run]: held_ns // SECOND_NS for *run_, held_ns in rows if (run := tuple(run_)) in wanted}
