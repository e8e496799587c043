"""Reads the output of `sacct -P`, the history of a site, as a workload.

sacct knows when a job was submitted, how long it ran and on how many GPUs. It knows the memory of a job only if Salus
admitted the job and wrote P and E into its AdminComment. For the others, memory is drawn from the published models with
the seed, and a caveat says so.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from nodedaemon.core.errors import RequestError
from nodedaemon.core.types import SECOND_NS, JobId
from nodedaemon.sim.models import timed_models
from nodedaemon.sim.tables import BadRowError, read_lines, refuse_bad_rows
from nodedaemon.sim.workload import Job, Workload, by_submission
from nodedaemon.wire.segment import parse_segment

#: The command whose output is read. More columns and any order are accepted.
SACCT_COMMAND = "sacct -a -X -P -o JobID,User,Account,Submit,Start,End,ElapsedRaw,State,AllocTRES,AdminComment"
#: What Slurm prints for a time in the future.
_NO_TIME = {"", "unknown", "none", "n/a"}
_ELAPSED = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)(?:\.\d+)?$")
#: More boundaries per job would only take longer: the history of a cluster spans hours.
TURNS_PER_JOB = 20


@dataclass
class _Skipped:
    """Counts valid rows that say nothing about sharing a GPU."""

    steps: int = 0
    without_device: int = 0
    not_run: int = 0


def read_sacct(path: Path, seed: int) -> Workload:
    """Read `sacct -P` output. Raises `RequestError` with every bad row. Steps and jobs without GPU are only counted."""
    numbered = [(number, line) for number, line in enumerate(read_lines(path), start=1) if line.strip()]
    if not numbered:
        raise RequestError(f"read workload: {path}: the file is empty; write it with `{SACCT_COMMAND}`")
    header = _header(path, numbered[0][1])
    rng = random.Random(seed)  # noqa: S311 - a workload must be the same for a seed
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
            job, is_drawn = _job(row, rng, skipped)
        except BadRowError as error:
            bad.append(f"{number}: {error}")
            continue
        if job is not None:
            # A requeued job has one row per run, all with the same id.
            job_id = job.id if job.id not in seen else JobId(f"{job.id}@{number}")
            seen.add(job_id)
            jobs.append(replace(job, id=job_id))
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
        jobs=by_submission(replace(job, submit_ns=job.submit_ns - first_ns) for job in jobs),
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


def _job(row: dict[str, str], rng: random.Random, skipped: _Skipped) -> tuple[Job | None, bool]:
    job_id = row.get("jobid") or row.get("jobidraw", "")
    if not job_id:
        raise BadRowError("JobID is empty")
    if "." in job_id:
        skipped.steps += 1
        return None, False
    faults: list[str] = []

    def read(value: Callable[[], int]) -> int:
        try:
            return value()
        except BadRowError as error:
            faults.append(str(error))
            return 0

    device_count = read(lambda: _devices(row.get("alloctres") or row.get("reqtres", "")))
    submit_ns = read(lambda: _time_ns(row["submit"], "Submit"))
    length_ns = read(lambda: _elapsed_ns(row))
    if faults:
        raise BadRowError("; ".join(faults))
    if device_count == 0:
        skipped.without_device += 1
        return None, False
    if length_ns == 0:
        skipped.not_run += 1
        return None, False
    # Draw for every job that is kept, so that recorded memory of one job does not change the others.
    model = rng.choice(timed_models())
    admitted = _admitted_bytes(row.get("admincomment", ""))
    persistent_bytes, ephemeral_bytes = admitted or (model.persistent_bytes, model.ephemeral_bytes)
    assert model.iteration_ns is not None
    iteration_ns = min(model.iteration_ns, length_ns)
    user = row.get("user") or "user"
    job = Job(
        id=JobId(job_id),
        submit_ns=submit_ns,
        persistent_bytes=persistent_bytes,
        ephemeral_bytes=ephemeral_bytes,
        iteration_ns=iteration_ns,
        iteration_count=max(1, round(length_ns / iteration_ns)),
        model="" if admitted else model.name,
        user=user,
        account=row.get("account") or user,
        device_count=device_count,
    )
    return job, admitted is None


def _time_ns(text: str, column: str) -> int:
    if text.isdecimal():
        return int(text) * SECOND_NS
    try:
        # sacct prints local time without a zone; only differences matter here, so any zone will do.
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
    """Count the GPUs in `billing=1,gres/gpu:a100=2`. Counts without a type include those with one."""
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
    """P and E in bytes from the Salus segment of an AdminComment, or None."""
    segment = parse_segment(comment, is_lower_case=True)
    if segment is None or segment.persistent_bytes is None or segment.ephemeral_bytes is None:
        return None
    return segment.persistent_bytes, segment.ephemeral_bytes
