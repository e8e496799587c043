"""Jobs that wait get the charge that is right by now: a sweep's first task measures, and the rest pack.

Each round reads Slurm's queue, decides every pending job of ours again from the profiles, and tells Slurm what
differs. A profile that became known replaces the whole device by the real charge and lifts the throttle of a probed
array; one that was raised raises the charge. `UnknownJob=requeue` jobs are put back once their profile is known.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import structlog

from nodedaemon.core.errors import OperatingError
from slurm_plugin.decision import Known, Verdict
from slurm_plugin.jobdesc import Segment, charged_tres, merge_segment, parse_tres, read_segment
from slurm_plugin.service import Admission, submission_of
from slurm_plugin.slurm import JobChange, QueuedJob, Slurm, SlurmError

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Correction:
    """What one job needs; `is_requeued` puts a running job back."""

    job: QueuedJob
    change: JobChange | None = None
    is_requeued: bool = False


def fields_of(job: QueuedJob) -> dict[str, str]:
    return {
        "tres_per_node": job.tres_per_node,
        "partition": job.partition,
        "account": job.account,
        "qos": job.qos,
        "admin_comment": job.admin_comment,
    }


def correction_of(job: QueuedJob, segment: Segment, verdict: Verdict) -> JobChange | None:
    """The difference between what Slurm has and what is right; None where there is none."""
    if not verdict.is_admitted:
        # Waiting with too small a charge would be wrong and without any is impossible: it keeps the one it has.
        return None
    wanted = verdict.segment
    is_known = wanted.persistent_bytes is not None
    if not is_known and segment.throttle is not None:
        wanted = replace(wanted, throttle=segment.throttle)
    if segment.kind == "lost" and not wanted.signature:
        return None
    tres = charged_tres(job.tres_per_node, wanted.shard_count)
    comment = merge_segment(job.admin_comment, wanted)
    has_charge = sorted((item.name, item.count) for item in parse_tres(job.tres_per_node))
    wants_charge = sorted((item.name, item.count) for item in parse_tres(tres))
    if has_charge == wants_charge and comment == job.admin_comment:
        return None
    return JobChange(
        # scontrol takes gres without its prefix, in both spellings.
        gres=",".join(f"{item.name}:{item.count}" for item in parse_tres(tres)),
        admin_comment=comment,
        array_throttle=segment.throttle if is_known else None,
        is_begin_soon=is_known and segment.kind == "requeue",
    )


class Readmission:
    def __init__(self, admission: Admission, slurm: Slurm) -> None:
        self._admission = admission
        self._slurm = slurm
        self.corrected_count = 0
        self.failed_count = 0

    async def corrections(self, jobs: list[QueuedJob]) -> list[Correction]:
        found = []
        # Once a signature: thousands of tasks of a sweep wait for the same profile.
        profiles: dict[tuple[int, str], Known] = {}
        for job in jobs:
            segment = read_segment(job.admin_comment)
            if segment is None or not segment.admission or job.state not in ("PENDING", "RUNNING"):
                continue
            if job.state == "RUNNING" and segment.kind != "requeue":
                continue
            submission = submission_of(job.uid, fields_of(job))
            key = (submission.uid, submission.signature)
            if key not in profiles:
                profiles[key] = await self._admission.known(submission, is_fresh=True)
            verdict = self._admission.decide(submission, profiles[key], segment.admission)
            if job.state == "RUNNING":
                if verdict.is_admitted and verdict.segment.kind == "shared":
                    found.append(Correction(job, is_requeued=True))
                continue
            change = correction_of(job, segment, verdict)
            if change is not None:
                found.append(Correction(job, change))
        return found

    async def round(self) -> int:
        """Look once at the queue; how many jobs were changed."""
        count = 0
        for correction in await self.corrections(await asyncio.to_thread(self._slurm.jobs)):
            target = correction.job.target
            try:
                if correction.is_requeued:
                    await asyncio.to_thread(self._slurm.requeue_job, target)
                elif correction.change is not None:
                    await asyncio.to_thread(self._slurm.update_job, target, correction.change)
            except SlurmError as error:
                # Most often the job has started meanwhile, with the charge it had.
                self.failed_count += 1
                log.warning("job not changed", job=target, reason=str(error))
                continue
            self.corrected_count += 1
            count += 1
            log.info("re-admitted", job=target, requeued=correction.is_requeued,
                     gres=correction.change.gres if correction.change else "")  # fmt: skip
        return count

    async def run_forever(self, interval_s: float) -> None:
        while True:
            try:
                await self.round()
            except OperatingError as error:
                log.warning("queue not read", reason=str(error))
            await asyncio.sleep(interval_s)
