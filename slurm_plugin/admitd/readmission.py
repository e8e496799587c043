"""Corrects the charges of waiting jobs once their profiles are known or have changed.

Each round reads Slurm's queue, repeats the decision for every pending Salus job, and changes the jobs whose charge
differs. A new profile replaces the whole device with the measured charge and lifts the limit of a probed array. A
larger profile raises the charge. A running job of `UnknownJob=requeue` is requeued once it is measured.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec
import structlog

from nodedaemon.core.errors import OperatingError
from nodedaemon.core.types import SECOND_NS
from nodedaemon.wire.segment import AdmissionSegment, merge_segment, parse_segment
from slurm_plugin.admitd.answers import SubmitAnswers, submission_of
from slurm_plugin.admitd.database import ProfileLookup
from slurm_plugin.admitd.decision import Verdict
from slurm_plugin.slurm import JobChange, QueuedJob, SlurmError
from slurm_plugin.slurm.cli import SlurmCommands
from slurm_plugin.slurm.tres import array_throttle, charged_tres, parse_tres

log = structlog.get_logger()

IDLE_ROUND_S = 60.0
# Nodes stamp profiles with their own clocks, and a ledger may keep a record for some seconds.
CLOCK_SLACK_NS = 30 * SECOND_NS


def correction_of(job: QueuedJob, segment: AdmissionSegment, verdict: Verdict) -> JobChange | None:
    """The change that gives a job the right charge; None if it already has it."""
    if not verdict.is_admitted:
        # The job keeps its charge: a smaller one would be wrong, and a job cannot wait without one.
        return None
    # Keep the user's own limit in the segment: lifting the limit is a second command that may fail alone.
    wanted = msgspec.structs.replace(verdict.segment, throttle=segment.throttle)
    is_known = wanted.persistent_bytes is not None
    tres = charged_tres(job.tres_per_node, wanted.shard_count)
    comment = merge_segment(job.admin_comment, wanted)
    has, wants = (sorted((item.name, item.count) for item in parse_tres(text)) for text in (job.tres_per_node, tres))
    is_charged = has == wants and comment == job.admin_comment
    limit = array_throttle(job.array_tasks)[1] or 0
    is_held_back = is_known and segment.throttle is not None and bool(job.array_tasks) and limit != segment.throttle
    if is_charged and not is_held_back:
        return None
    return JobChange(
        # scontrol expects gres without the prefix, on all releases.
        gres=None if is_charged else ",".join(f"{item.name}:{item.count}" for item in parse_tres(tres)),
        admin_comment=None if is_charged else comment,
        array_throttle=segment.throttle if is_held_back else None,
        is_begin_soon=is_known and segment.kind == "requeue",
    )


class Readmission:
    def __init__(self, answers: SubmitAnswers, slurm: SlurmCommands) -> None:
        self._answers = answers
        self.slurm = slurm
        self.corrected_count = 0

    async def corrections(self, jobs: list[QueuedJob]) -> list[tuple[QueuedJob, JobChange | None]]:
        """The jobs to change, each with its change; None requeues a running job."""
        corrections: list[tuple[QueuedJob, JobChange | None]] = []
        # One lookup per signature: thousands of tasks of a sweep wait for the same profile.
        profiles: dict[tuple[int, str], ProfileLookup] = {}
        for job in jobs:
            segment = parse_segment(job.admin_comment)
            # A job that was submitted while salus-admitd was down has no admission, and no signature to look up.
            if segment is None or not segment.admission or job.state not in ("PENDING", "RUNNING"):
                continue
            if job.state == "RUNNING" and segment.kind != "requeue":
                continue
            submission = submission_of(job.uid, vars(job))
            key = (submission.uid, submission.signature)
            if key not in profiles:
                profiles[key] = await self._answers.profile_of(submission, is_fresh=True)
            verdict = self._answers.decide(submission, profiles[key], segment.admission)
            if job.state == "RUNNING":
                if verdict.is_admitted and verdict.segment.kind == "shared":
                    corrections.append((job, None))
                continue
            change = correction_of(job, segment, verdict)
            if change is not None:
                corrections.append((job, change))
        return corrections

    async def round(self) -> None:
        """Correct the queue once."""
        for job, change in await self.corrections(await asyncio.to_thread(self.slurm.jobs)):
            try:
                if change is None:
                    await asyncio.to_thread(self.slurm.requeue_job, job.target)
                else:
                    await asyncio.to_thread(self.slurm.update_job, job.target, change)
            except SlurmError as error:
                # Usually the job has just started, with the charge that it had.
                log.warning("job not changed", job=job.target, reason=str(error))
                continue
            self.corrected_count += 1
            log.info("re-admitted", job=job.target, requeued=change is None, gres=change.gres if change else "")

    async def run_forever(self, interval_s: Callable[[], float]) -> None:
        """Run a round when a profile or a waiting job has changed, and once per IDLE_ROUND_S: squeue is expensive."""
        looked_utc_ns, waited_s = 0, 0.0
        while True:
            now_utc_ns = time.time_ns()
            is_due = waited_s >= IDLE_ROUND_S or self._answers.is_recheck_wanted
            if is_due or await self._answers.profiles.has_changed(looked_utc_ns - CLOCK_SLACK_NS):
                self._answers.is_recheck_wanted = False
                try:
                    await self.round()
                    looked_utc_ns, waited_s = now_utc_ns, 0.0
                except OperatingError as error:
                    log.warning("queue not read", reason=str(error))
            pause_s = interval_s()
            await asyncio.sleep(pause_s)
            waited_s += pause_s
