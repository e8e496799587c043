"""A site's own history: `sacct -P` output as a workload.

sacct knows when a job came, how long it ran and on how many GPUs. Memory it knows only for jobs that Salus admitted
(their AdminComment carries P and E); for the others it is drawn from the published models with the seed, and said so.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from nodedaemon.core.errors import RequestError
from nodedaemon.core.types import SECOND_NS, JobId
from nodedaemon.sim.models import Model, timed_models
from nodedaemon.sim.tables import BadRowError, read_lines, refuse_bad_rows
from nodedaemon.sim.workload import Job, Workload, by_submission
from nodedaemon.wire.segment import parse_segment

#: The command whose output is read; more columns and another order do no harm.
SACCT_COMMAND = "sacct -a -X -P -o JobID,User,Account,Submit,Start,End,ElapsedRaw,State,AllocTRES,AdminComment"
#: Slurm's words for a time that has not come.
_NO_TIME = {"", "unknown", "none", "n/a"}
_ELAPSED = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)(?:\.\d+)?$")
#: Many boundaries a job would only cost time: a cluster's history is about hours.
TURNS_PER_JOB = 20


@dataclass
class _Skipped:
    """Rows that are right but say nothing about sharing a GPU, counted for the reader."""

    steps: int = 0
    without_device: int = 0
    not_run: int = 0


def read_sacct(path: Path, seed: int) -> Workload:
    """Read `sacct -P` output; `RequestError` names every bad row. Steps and jobs without GPU are counted."""
    numbered = [(number, line) for number, line in enumerate(read_lines(path), start=1) if line.strip()]
    if not numbered:
        raise RequestError(f"read workload: {path}: the file is empty; write it with `{SACCT_COMMAND}`")
    header = _header(path, numbered[0][1])
    dice = random.Random(seed)  # noqa: S311 - a workload must be the same for a seed
    jobs: list[Job] = []
    bad: list[str] = []
    skipped = _Skipped()
    drawn_count, seen = 0, set()
    for number, line in numbered[1:]:
        cells = line.split("|")
        if len(cells) != len(header):
            bad.append(f"{number}: {len(cells)} fields where the header has {len(header)}")
            continue
        row = dict(zip(header, (cell.strip() for cell in cells), strict=True))
        try:
            job, is_drawn = _job(row, dice, skipped)
        except BadRowError as error:
            bad.append(f"{number}: {error}")
            continue
        if job is not None:
            # A requeued job has a row for each run, under one id.
            job_id = job.id if job.id not in seen else JobId(f"{job.id}@{number}")
            seen.add(job_id)
            jobs.append(_renamed(job, job_id))
            drawn_count += is_drawn
    refuse_bad_rows(path, bad)
    if not jobs:
        raise RequestError(f"read workload: {path}: no finished job with a GPU in the file; see `man salus`")
    return _workload(path, jobs, seed, drawn_count, skipped)


def _workload(path: Path, jobs: list[Job], seed: int, drawn_count: int, skipped: _Skipped) -> Workload:
    first_ns = min(job.submit_ns for job in jobs)
    caveats = []
    if drawn_count:
        caveats.append(
            f"memory of {drawn_count} of {len(jobs)} jobs is not in the file; drawn from published models, seed {seed}"
        )
    return Workload(
        name=path.name,
        jobs=by_submission(_moved(job, -first_ns) for job in jobs),
        about="a site's history",
        source=f"sacct, {path.name}",
        turns_per_job=TURNS_PER_JOB,
        parameters={
            "jobs": len(jobs),
            "seed": seed,
            "jobs_with_drawn_memory": drawn_count,
            "steps_left_out": skipped.steps,
            "jobs_without_gpu_left_out": skipped.without_device,
            "jobs_not_run_left_out": skipped.not_run,
        },
        caveats=tuple(caveats),
    )


def _renamed(job: Job, job_id: JobId) -> Job:
    return job if job.id == job_id else replace(job, id=job_id)


def _moved(job: Job, by_ns: int) -> Job:
    return replace(job, submit_ns=job.submit_ns + by_ns)


def _header(path: Path, line: str) -> list[str]:
    header = [name.strip().lower() for name in line.split("|")]
    lacking = []
    if not {"jobid", "jobidraw"} & set(header):
        lacking.append("JobID")
    if "submit" not in header:
        lacking.append("Submit")
    if not {"elapsedraw", "elapsed"} & set(header) and not {"start", "end"} <= set(header):
        lacking.append("ElapsedRaw, Elapsed, or Start and End")
    if not {"alloctres", "reqtres"} & set(header):
        lacking.append("AllocTRES or ReqTRES")
    if lacking:
        raise RequestError(
            f"read workload: {path}:1: no column {'; no column '.join(lacking)}; write the file with `{SACCT_COMMAND}`"
        )
    return header


def _job(row: dict[str, str], dice: random.Random, skipped: _Skipped) -> tuple[Job | None, bool]:
    job_id = row.get("jobid") or row.get("jobidraw", "")
    if not job_id:
        raise BadRowError("JobID is empty")
    if "." in job_id:
        skipped.steps += 1
        return None, False
    faults: list[str] = []
    submit_ns = length_ns = 0
    device_count = 0
    try:
        device_count = _devices(row.get("alloctres") or row.get("reqtres", ""))
    except BadRowError as error:
        faults.append(str(error))
    try:
        submit_ns = _time_ns(row["submit"], "Submit")
    except BadRowError as error:
        faults.append(str(error))
    try:
        length_ns = _elapsed_ns(row)
    except BadRowError as error:
        faults.append(str(error))
    if faults:
        raise BadRowError("; ".join(faults))
    if device_count == 0:
        skipped.without_device += 1
        return None, False
    if length_ns == 0:
        skipped.not_run += 1
        return None, False
    # Drawn for every job kept, so that adding Salus's own figures to one does not change the others.
    model = dice.choice(timed_models())
    known = _admitted_bytes(row.get("admincomment", ""))
    return _built(JobId(job_id), row, submit_ns, length_ns, device_count, model, known), known is None


def _built(
    job_id: JobId,
    row: dict[str, str],
    submit_ns: int,
    length_ns: int,
    device_count: int,
    model: Model,
    known: tuple[int, int] | None,
) -> Job:
    assert model.iteration_ns is not None
    persistent_bytes, ephemeral_bytes = known or (model.persistent_bytes, model.ephemeral_bytes)
    iteration_ns = min(model.iteration_ns, length_ns)
    user = row.get("user") or "user"
    return Job(
        id=job_id,
        submit_ns=submit_ns,
        persistent_bytes=persistent_bytes,
        ephemeral_bytes=ephemeral_bytes,
        iteration_ns=iteration_ns,
        iteration_count=max(1, round(length_ns / iteration_ns)),
        model="" if known else model.name,
        user=user,
        account=row.get("account") or user,
        device_count=device_count,
    )


def _time_ns(text: str, column: str) -> int:
    if text.isdecimal():
        return int(text) * SECOND_NS
    try:
        # sacct prints local time without a zone; only differences matter here, so any one zone will do.
        return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND_NS
    except (ValueError, OverflowError):
        raise BadRowError(f"{column} is {text!r}, not a time such as 2026-01-31T12:00:00") from None


def _elapsed_ns(row: dict[str, str]) -> int:
    raw = row.get("elapsedraw", "")
    if raw:
        if not raw.isdecimal():
            raise BadRowError(f"ElapsedRaw is {raw!r}, not seconds")
        return int(raw) * SECOND_NS
    elapsed = row.get("elapsed", "")
    if elapsed:
        found = _ELAPSED.match(elapsed)
        if found is None:
            raise BadRowError(f"Elapsed is {elapsed!r}, not a time such as 1-02:03:04")
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * SECOND_NS
    start, end = row.get("start", ""), row.get("end", "")
    if start.lower() in _NO_TIME or end.lower() in _NO_TIME:
        return 0
    length_ns = _time_ns(end, "End") - _time_ns(start, "Start")
    if length_ns < 0:
        raise BadRowError(f"End {end} is before Start {start}")
    return length_ns


def _devices(tres: str) -> int:
    """Count the GPUs in `billing=1,gres/gpu:a100=2`; plain names include the typed ones."""
    counts: dict[str, int] = {}
    for part in tres.split(","):
        name, _, count = part.partition("=")
        if name.startswith(("gres/gpu", "gres/salus")) and name not in ("gres/gpumem", "gres/gpuutil"):
            if not count.isdecimal():
                raise BadRowError(f"TRES is {tres!r}: {name} has no count")
            counts[name] = int(count)
    for name in ("gres/gpu", "gres/salus"):
        if name in counts:
            return counts[name]
    return sum(counts.values())


def _admitted_bytes(comment: str) -> tuple[int, int] | None:
    """P and E in bytes from Salus's segment of an AdminComment, where there is one."""
    segment = parse_segment(comment, is_lower_case=True)
    if segment is None or segment.persistent_bytes is None or segment.ephemeral_bytes is None:
        return None
    return segment.persistent_bytes, segment.ephemeral_bytes
