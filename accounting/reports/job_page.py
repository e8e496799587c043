"""A job's page: everything that is recorded about each of its runs."""

from typing import Any

import msgspec
from sqlalchemy import Connection, func, select

from accounting.profiles import ProfileView, list_profiles
from accounting.reports import queries
from accounting.reports.charts import reason_text
from accounting.reports.measures import Measures
from accounting.reports.report import held_and_used, job_run_values
from accounting.reports.selection import JobSelector, Selection
from accounting.reports.values import AdmissionPart, DevicePart, EventPart, JobPage
from accounting.storage.database import Database
from accounting.storage.tables import ADMISSIONS, DEVICES, EVENTS, JOBS, NODES, REASONS, SESSIONS, USAGE
from accounting.viewer import Viewer
from nodedaemon.wire.envelope import NotFoundError

RUNS_MAX = 200
EVENTS_MAX = 50


def job_pages(
    database: Database, viewer: Viewer, job: JobSelector, *, now_utc_ns: int, clusters: tuple[str, ...] = ()
) -> list[JobPage]:
    """The runs of a job, oldest first; NotFoundError if there is none that `viewer` may see."""
    selection = Selection(start_utc_ns=0, end_utc_ns=now_utc_ns, jobs=(job,), clusters=clusters)
    selection = queries.restricted(selection, viewer)
    with database.reading() as connection:
        runs = queries.JOB_RUNS.where(*queries.job_conditions(selection)).limit(RUNS_MAX)
        order = (JOBS.c.slurm_job_id, JOBS.c.restart_count)
        rows = connection.execute(runs.order_by(*order)).mappings().all()
        if not rows:
            # The same message for an unknown job and for another user's, so that it reveals nothing.
            raise NotFoundError(f"job not found: {_describe(job)}: no record is visible to you; try sacct -j")
        sums = held_and_used(connection, selection, now_utc_ns, {"id": JOBS.c.id})
        pages = [_page(connection, row, sums.get((row["id"],), Measures())) for row in rows]
    return [msgspec.structs.replace(page, profile=_profile(database, viewer, page)) for page in pages]


def _page(connection: Connection, row: Any, measures: Measures) -> JobPage:
    sessions = select(func.count()).select_from(SESSIONS).where(SESSIONS.c.job_id == row["id"])
    return JobPage(
        **job_run_values(row),
        job_id=row["slurm_job_id"],
        restart_count=row["restart_count"],
        device_count=row["device_count"],
        wait_ns=row["wait_ns"],
        session_count=connection.scalar(sessions) or 0,
        measures=measures,
        devices=_devices(connection, row["id"]),
        admission=_admission(connection, row),
        profile=None,
        events=_events(connection, row["id"]),
    )


def _devices(connection: Connection, job_row_id: int) -> list[DevicePart]:
    statement = (
        select(
            NODES.c.name,
            DEVICES.c.uuid,
            DEVICES.c.model,
            DEVICES.c.capacity_bytes,
            func.max(USAGE.c.persistent_bytes_max),
            func.max(USAGE.c.ephemeral_bytes_max),
        )
        .select_from(
            USAGE.join(DEVICES, DEVICES.c.id == USAGE.c.device_id).join(NODES, NODES.c.id == DEVICES.c.node_id)
        )
        .where(USAGE.c.job_id == job_row_id)
        .group_by(NODES.c.name, DEVICES.c.uuid, DEVICES.c.model, DEVICES.c.capacity_bytes)
        .order_by(NODES.c.name, DEVICES.c.uuid)
    )
    fields = DevicePart.__struct_fields__
    return [DevicePart(**dict(zip(fields, row, strict=True))) for row in connection.execute(statement)]


def _admission(connection: Connection, row: Any) -> AdmissionPart | None:
    if not row["admission"]:
        return None
    target = (ADMISSIONS.c.cluster_id == row["cluster_id"], ADMISSIONS.c.name == row["admission"])
    found = connection.execute(select(ADMISSIONS).where(*target)).mappings().first()
    if found is None:
        return None
    reasons = select(REASONS).where(REASONS.c.admission_id == found["id"]).order_by(REASONS.c.position)
    return AdmissionPart(
        reasons=[reason_text(reason) for reason in connection.execute(reasons).mappings()],
        **{name: found[name] for name in AdmissionPart.__struct_fields__ if name != "reasons"},
    )


def _events(connection: Connection, job_row_id: int) -> list[EventPart]:
    statement = (
        select(EVENTS.c.happened_utc_ns, EVENTS.c.kind, EVENTS.c.detail)
        .where(EVENTS.c.job_id == job_row_id)
        .order_by(EVENTS.c.happened_utc_ns)
        .limit(EVENTS_MAX)
    )
    return [EventPart(happened_utc_ns=row[0], kind=row[1], detail=row[2]) for row in connection.execute(statement)]


def _profile(database: Database, viewer: Viewer, page: JobPage) -> ProfileView | None:
    if not page.signature:
        return None
    models = {part.device_model for part in page.devices}
    found = list_profiles(database, viewer, cluster=page.cluster, users=[page.user], signature=page.signature)
    return next((profile for profile in found if profile.key.device_model in models), found[0] if found else None)


def _describe(job: JobSelector) -> str:
    if job.sluid:
        return job.sluid
    if job.array_task_id is not None:
        return f"{job.job_id}_{job.array_task_id}"
    return f"{job.job_id}+{job.het_offset}" if job.het_offset is not None else str(job.job_id)
