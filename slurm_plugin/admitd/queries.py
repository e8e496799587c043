"""The answers of salus-admitd to commands on login nodes: users see their own jobs and profiles, operators see all.

The Viewer comes from a verified credential. Each answer is filtered by it, here or in accounting.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from accounting.questions import QUESTION_VERBS
from accounting.viewer import Viewer
from nodedaemon.core.errors import RequestError
from nodedaemon.wire.control import AdmissionWhy, Charge, ProfileSummary, Reason, WhyAnswer
from nodedaemon.wire.envelope import NotFoundError, Request
from nodedaemon.wire.segment import AdmissionSegment, parse_segment
from nodedaemon.wire.users import user_name
from slurm_plugin.admitd.answers import SubmitAnswers, submission_of
from slurm_plugin.admitd.queue_listing import QueueListing
from slurm_plugin.admitd.report_workers import ReportWorkers
from slurm_plugin.slurm import QueuedJob

SHOWN_FIELDS = ("id", "target", "user", "account", "partition", "name", "state", "reason", "nodes")
VERBS = ("ping", "status", "why", *QUESTION_VERBS)


def viewer_of(uid: int, operators: tuple[str, ...], admins: tuple[str, ...]) -> Viewer:
    user = user_name(uid)
    return Viewer(uid=uid, user=user, is_operator=uid == 0 or user in operators or user in admins)


class Queries:
    def __init__(self, answers: SubmitAnswers, queue: QueueListing, reports: ReportWorkers) -> None:
        self._answers = answers
        self._queue = queue
        self._reports = reports

    async def answer(self, viewer: Viewer, request: Request) -> dict[str, Any] | bytes:
        """The answer, or its line for the client if another process has written it."""
        match request.verb:
            case "ping":
                return {"ok": True, "user": viewer.user, "is_operator": viewer.is_operator}
            case "status":
                return {"ok": True, "jobs": [describe(*found) for found in await self._jobs(viewer)]}
            case "why":
                return {"ok": True, **await self._why(viewer, str(request.fields.get("job", "")))}
            case verb if verb in QUESTION_VERBS:
                return await self._reports.answer(viewer, {"verb": verb, **request.fields})
        verbs = ", ".join(sorted(VERBS))
        raise RequestError(f"salus-admitd: {request.verb}: no such verb; use one of {verbs}")

    async def _jobs(self, viewer: Viewer) -> list[tuple[QueuedJob, AdmissionSegment]]:
        """The Salus jobs in the queue that `viewer` may see."""
        return [
            (job, segment)
            for job in await self._queue.jobs()
            if (viewer.is_operator or job.uid == viewer.uid) and (segment := parse_segment(job.admin_comment))
        ]

    async def _why(self, viewer: Viewer, wanted: str) -> dict[str, Any]:
        """Why a job has its charge, and which charge it would get if it were submitted now."""
        found = [(job, segment) for job, segment in await self._jobs(viewer) if wanted in (str(job.id), job.target)]
        if not found:
            raise NotFoundError(
                f"why: job {wanted}: not in the queue, or not yours; if it has ended: salus-acct job {wanted}"
            )
        job, segment = found[0]
        submission = submission_of(job.uid, vars(job))
        lookup = await self._answers.profile_of(submission)
        verdict = self._answers.decide(submission, lookup, "")
        answer = WhyAnswer(
            job=job.target,
            user=job.user,
            state=job.state,
            reasons=[Reason(what=job.reason)] if job.reason else [],
            admission=AdmissionWhy(
                charge=Charge(kind=segment.kind, job_class=segment.job_class, shards=segment.shard_count),
                profile=msgspec.convert(lookup.profile, ProfileSummary | None, from_attributes=True),
                now=Charge(
                    is_admitted=verdict.is_admitted,
                    kind=verdict.segment.kind,
                    job_class=verdict.segment.job_class,
                    shards=verdict.segment.shard_count,
                    bytes=verdict.charge_bytes,
                    basis=verdict.basis,
                    reasons=[Reason(what=reason.text()) for reason in verdict.reasons],
                ),
            ),
        )
        return cast(dict[str, Any], msgspec.to_builtins(answer))


def describe(job: QueuedJob, segment: AdmissionSegment) -> dict[str, Any]:
    return {
        **{name: getattr(job, name) for name in SHOWN_FIELDS},
        "shards": segment.shard_count,
        "kind": segment.kind,
        "class": segment.job_class,
        "persistent_bytes": segment.persistent_bytes,
        "ephemeral_bytes": segment.ephemeral_bytes,
        "signature": segment.signature,
        "admission": segment.admission,
    }
