"""Reports: rows of names and measures, a total, and a summary.

A report shows only what its Viewer, whom the caller has verified, may see. Callers get values, never database rows.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from sqlalchemy import ColumnElement, Connection, exists, func, select

from accounting.ingest import accounts
from accounting.reports import queries
from accounting.reports.measures import Measures, percentile
from accounting.reports.queries import Group
from accounting.reports.selection import ReportKind, Selection
from accounting.reports.values import JobRun, Report, ReportRow, Summary
from accounting.storage.database import Database, chunks
from accounting.storage.tables import (
    ADMISSIONS,
    CLUSTERS,
    DEVICES,
    EVENTS,
    JOBS,
    NODES,
    PROFILES,
    REASONS,
    SESSIONS,
    USAGE,
    VERSIONS,
)
from accounting.viewer import Viewer
from nodedaemon.core.types import SECOND_NS

MEMORY_UNITS = ("bytes", "shards")


def make_report(
    database: Database,
    viewer: Viewer,
    kind: ReportKind,
    selection: Selection,
    *,
    now_utc_ns: int,
    with_sessions: bool = False,
    is_tree: bool = False,
    on_step: Callable[[str], None] | None = None,
) -> Report:
    """The report `kind` over `selection`, as far as `viewer` may see it. One pass over jobs, one over usage.

    `is_tree` nests accounts as in Slurm's associations.
    """
    kind, selection = ReportKind(kind), queries.restricted(selection, viewer)
    report_step = on_step or (lambda _step: None)
    with database.reading(is_large=True) as connection:
        report_step("jobs and usage")
        rows, total = _rows(connection, kind, selection, now_utc_ns, is_tree=is_tree)
        if kind is ReportKind.JOB and with_sessions:
            rows = _with_sessions(connection, rows, selection)
        report_step("waits, admissions and events")
        summary = _summary(connection, viewer, selection)
        clusters = sorted(connection.execute(select(CLUSTERS.c.name)).scalars())
    return Report(
        kind=kind,
        start_utc_ns=selection.start_utc_ns,
        end_utc_ns=selection.end_utc_ns,
        until_utc_ns=min(selection.end_utc_ns, now_utc_ns),
        clusters=[name for name in clusters if not selection.clusters or name in selection.clusters],
        rows=rows,
        total=total,
        summary=summary,
    )


def wait_distribution(connection: Connection, selection: Selection) -> list[tuple[int, int]]:
    """Queue waits of the runs that started in the window, as (seconds, count)."""
    seconds = (JOBS.c.wait_ns // SECOND_NS).label("seconds")
    plan = queries.read_plan(connection, JOBS, selection)
    statement = (
        select(seconds, func.count())
        .where(queries.within(plan.start, selection), JOBS.c.wait_ns.is_not(None), *queries.job_conditions(selection))
        .group_by(seconds)
    )
    counts: Counter[int] = Counter()
    for piece in plan.pieces:
        counts.update({int(value): int(count) for value, count in connection.execute(statement.where(*piece))})
    return list(counts.items())


def _rows(
    connection: Connection, kind: ReportKind, selection: Selection, now_utc_ns: int, *, is_tree: bool
) -> tuple[list[ReportRow], Measures]:
    match kind:
        case ReportKind.CLUSTER:
            sums = held_and_used(connection, selection, now_utc_ns, {"cluster": CLUSTERS.c.name})
            rows = [ReportRow(cluster=group[0], measures=sums[group]) for group in sorted(sums)]
        case ReportKind.SUMMARY | ReportKind.ACCOUNT | ReportKind.USER:
            sums = held_and_used(connection, selection, now_utc_ns, {"account": JOBS.c.account, "user": JOBS.c.user})
            if is_tree and kind is not ReportKind.USER:
                rows = _tree(sums, accounts.parents_of(connection, selection.clusters))
            else:
                rows = _nested(sums, is_by_user=kind is ReportKind.USER)
        case ReportKind.DEVICE:
            rows = _device_rows(connection, selection)
        case ReportKind.PROFILE:
            rows = _profile_rows(connection, selection)
        case ReportKind.JOB:
            rows = _job_rows(connection, selection, now_utc_ns)
    return rows, sum((row.measures for row in rows if row.depth == 0), Measures())


def held_and_used(
    connection: Connection, selection: Selection, now_utc_ns: int, dimensions: dict[str, ColumnElement[Any]]
) -> dict[Group, Measures]:
    """All measures of the job runs in the window, by `dimensions`."""
    sums = queries.held(connection, selection, dimensions, now_utc_ns)
    for group, measures in queries.used(connection, selection, dimensions).items():
        sums[group] = sums.get(group, Measures()) + measures
    return sums


def _nested(sums: dict[Group, Measures], *, is_by_user: bool) -> list[ReportRow]:
    """Accounts and below each its users, or users and below each their accounts."""
    inner: dict[str, list[ReportRow]] = {}
    for (account, user), measures in sorted(sums.items()):
        row = ReportRow(depth=1, account=account, user=user, measures=measures)
        inner.setdefault(user if is_by_user else account, []).append(row)
    rows: list[ReportRow] = []
    for name, members in sorted(inner.items()):
        total = sum((row.measures for row in members), Measures())
        rows.append(ReportRow(user=name, measures=total) if is_by_user else ReportRow(account=name, measures=total))
        rows += members
    return rows


def _tree(sums: dict[Group, Measures], parents: dict[str, str]) -> list[ReportRow]:
    """Accounts below their parents, users below their account; an account's line sums everything below it."""
    users: dict[str, dict[str, Measures]] = {}
    for (account, user), measures in sums.items():
        users.setdefault(account, {})[user] = measures
    children = accounts.children_of(users, parents)

    def branch(account: str, depth: int) -> list[ReportRow]:
        below = [
            ReportRow(depth=depth + 1, account=account, user=user, measures=measures)
            for user, measures in sorted(users.get(account, {}).items())
        ]
        for child in children.get(account, ()):
            below += branch(child, depth + 1)
        total = sum((row.measures for row in below if row.depth == depth + 1), Measures())
        return [ReportRow(depth=depth, account=account, measures=total), *below]

    return [row for top in children.get(None, ()) for row in branch(top, 0)]


def _device_rows(connection: Connection, selection: Selection) -> list[ReportRow]:
    dimensions = {"node": NODES.c.name, "device": DEVICES.c.uuid, "model": DEVICES.c.model, "id": DEVICES.c.id}
    sums = queries.used(connection, selection, dimensions)
    numbers = (
        select(USAGE.c.device_id, func.count(USAGE.c.job_id.distinct()))
        .join(JOBS, JOBS.c.id == USAGE.c.job_id)
        .where(*queries.overlaps(USAGE, selection), *queries.job_conditions(selection))
        .group_by(USAGE.c.device_id)
    )
    counts: dict[int, int] = {row[0]: row[1] for row in connection.execute(numbers)}
    return [
        ReportRow(
            node=node, device=uuid, device_model=model, measures=measures + Measures(job_count=counts.get(row, 0))
        )
        for (node, uuid, model, row), measures in sorted(sums.items())
    ]


def _profile_rows(connection: Connection, selection: Selection) -> list[ReportRow]:
    names = {"user": JOBS.c.user, "signature": JOBS.c.signature, "model": DEVICES.c.model}
    sums = queries.used(connection, selection, names)
    return [
        ReportRow(user=user, signature=signature, device_model=model, measures=measures)
        for (user, signature, model), measures in sorted(sums.items())
    ]


def _job_rows(connection: Connection, selection: Selection, now_utc_ns: int) -> list[ReportRow]:
    sums = held_and_used(connection, selection, now_utc_ns, {"id": JOBS.c.id})
    rows: list[ReportRow] = []
    for part in chunks(sorted(group[0] for group in sums)):
        runs = queries.JOB_RUNS.where(JOBS.c.id.in_(part)).order_by(JOBS.c.id)
        rows += [
            ReportRow(**job_run_values(row), restart_count=row["restart_count"], measures=sums[(row["id"],)])
            for row in connection.execute(runs).mappings()
        ]
    rows.sort(key=lambda row: (row.start_utc_ns or 0, row.job, row.restart_count or 0))
    return rows


def job_run_values(row: Any) -> dict[str, Any]:
    """The fields of JobRun, except for the measures, from a row of `queries.JOB_RUNS`."""
    values = {name: row[name] for name in JobRun.__struct_fields__ if name in row}
    return values | {"job": job_name(row), "end_utc_ns": row["until_utc_ns"]}


def job_name(row: Any) -> str:
    """A job id as sacct prints it: 123, 123_4 for an array task, 123+1 for a component of a het job."""
    if row["array_job_id"] is not None and row["array_task_id"] is not None:
        return f"{row['array_job_id']}_{row['array_task_id']}"
    if row["het_job_id"] is not None and row["het_offset"] is not None:
        return f"{row['het_job_id']}+{row['het_offset']}"
    return str(row["slurm_job_id"])


def joined_job_name(values: Any) -> str:
    """The same for a row that joins JOBS with tables that have columns of the same names."""
    names = ("slurm_job_id", "array_job_id", "array_task_id", "het_job_id", "het_offset")
    return job_name({name: values[JOBS.c[name]] for name in names})


def _with_sessions(connection: Connection, rows: list[ReportRow], selection: Selection) -> list[ReportRow]:
    """Insert the sessions of each job below it, as sacct does with steps."""
    statement = (
        select(
            SESSIONS,
            JOBS,
            DEVICES.c.uuid,
            DEVICES.c.model,
            NODES.c.name.label("node"),
            CLUSTERS.c.name.label("cluster"),
        )
        .join(JOBS, JOBS.c.id == SESSIONS.c.job_id)
        .join(CLUSTERS, CLUSTERS.c.id == JOBS.c.cluster_id)
        .join(DEVICES, DEVICES.c.id == SESSIONS.c.device_id)
        .join(NODES, NODES.c.id == DEVICES.c.node_id)
        .where(SESSIONS.c.start_utc_ns < selection.end_utc_ns, *queries.job_conditions(selection))
        .order_by(SESSIONS.c.start_utc_ns, SESSIONS.c.number)
    )
    below: dict[tuple[str, str, int | None], list[ReportRow]] = {}
    for values in connection.execute(statement).mappings():
        job = joined_job_name(values)
        session = ReportRow(
            depth=1,
            cluster=values["cluster"],
            job=f"{job}.s{values[SESSIONS.c.number]}",
            user=values[JOBS.c.user],
            account=values[JOBS.c.account],
            node=values["node"],
            device=values[DEVICES.c.uuid],
            device_model=values[DEVICES.c.model],
            state=values[SESSIONS.c.end_reason] or ("RUNNING" if values[SESSIONS.c.end_utc_ns] is None else "ENDED"),
            start_utc_ns=values[SESSIONS.c.start_utc_ns],
            end_utc_ns=values[SESSIONS.c.end_utc_ns],
            measures=Measures(
                iteration_count=values[SESSIONS.c.iteration_count], handover_count=values[SESSIONS.c.handover_count]
            ),
        )
        below.setdefault((values["cluster"], job, values[JOBS.c.restart_count]), []).append(session)
    return [line for row in rows for line in (row, *below.get((row.cluster, row.job, row.restart_count), ()))]


def _summary(connection: Connection, viewer: Viewer, selection: Selection) -> Summary:
    waits = wait_distribution(connection, selection)
    median_s, p95_s = (percentile(waits, part) for part in (0.5, 0.95))
    refused, made_to_wait = (_short_of_memory(connection, selection, decision) for decision in ("refuse", "defer"))
    events = (
        select(EVENTS.c.kind, func.count())
        .outerjoin(JOBS, JOBS.c.id == EVENTS.c.job_id)
        .where(queries.within(EVENTS.c.happened_utc_ns, selection))
        .group_by(EVENTS.c.kind)
    )
    changes = (
        select(func.count())
        .select_from(VERSIONS.join(PROFILES, PROFILES.c.id == VERSIONS.c.profile_id))
        .where(queries.within(VERSIONS.c.changed_utc_ns, selection))
    )
    if selection.users:
        changes = changes.where(PROFILES.c.user.in_(selection.users))
    if not viewer.is_operator:
        events = events.where(JOBS.c.user == viewer.user)
    event_counts = {kind: int(count) for kind, count in connection.execute(events)}
    return Summary(
        refused_count=refused,
        made_to_wait_count=made_to_wait + event_counts.get("claim_waited", 0),
        wait_median_ns=None if median_s is None else median_s * SECOND_NS,
        wait_p95_ns=None if p95_s is None else p95_s * SECOND_NS,
        profile_change_count=connection.scalar(changes) or 0,
        device_count=connection.scalar(select(func.count()).select_from(DEVICES)) or 0,
        event_counts=event_counts,
    )


def _short_of_memory(connection: Connection, selection: Selection, decision: str) -> int:
    is_memory = exists().where(REASONS.c.admission_id == ADMISSIONS.c.id, REASONS.c.unit.in_(MEMORY_UNITS))
    statement = (
        select(func.count())
        .select_from(ADMISSIONS)
        .where(queries.within(ADMISSIONS.c.decided_utc_ns, selection), ADMISSIONS.c.decision == decision, is_memory)
    )
    if selection.users:
        statement = statement.where(ADMISSIONS.c.user.in_(selection.users))
    if selection.accounts:
        statement = statement.where(ADMISSIONS.c.account.in_(selection.accounts))
    return connection.scalar(statement) or 0
