"""The answers of salus-admitd to commands on login nodes: users see their own jobs and profiles, operators see all.

The Viewer comes from a verified credential. Each answer is filtered by it, here or in accounting.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import msgspec

from accounting.questions import QUESTION_VERBS, answer_question
from accounting.viewer import AbsentError, Viewer
from nodedaemon.core.errors import RequestError
from nodedaemon.wire.control import AdmissionWhy, Charge, ProfileSummary, Reason, WhyAnswer
from nodedaemon.wire.envelope import Request
from nodedaemon.wire.segment import parse_segment
from nodedaemon.wire.users import user_name
from slurm_plugin.admitd.answers import SubmitAnswers, submission_of
from slurm_plugin.admitd.database import AdmissionDatabase
from slurm_plugin.admitd.readmission import fields_of
from slurm_plugin.slurm import QueuedJob
from slurm_plugin.slurm.cli import SlurmCommands

SHOWN_FIELDS = ("id", "target", "user", "account", "partition", "name", "state", "reason", "nodes")
Query = Callable[[Viewer, Mapping[str, Any]], Awaitable[dict[str, Any]]]


def viewer_of(uid: int, operators: tuple[str, ...], admins: tuple[str, ...]) -> Viewer:
    user = user_name(uid)
    return Viewer(uid=uid, user=user, is_operator=uid == 0 or user in operators or user in admins)


class Queries:
    def __init__(self, answers: SubmitAnswers, slurm: SlurmCommands, store: AdmissionDatabase) -> None:
        self._answers = answers
        self.slurm = slurm
        self._store = store
        self._queries: dict[str, Query] = {"ping": self._ping, "status": self._status, "why": self._why}

    async def answer(self, viewer: Viewer, request: Request) -> dict[str, Any]:
        if request.verb in QUESTION_VERBS:
            return {"ok": True, "answer": await asyncio.to_thread(self._answer_question, viewer, request)}
        query = self._queries.get(request.verb)
        if query is None:
            verbs = ", ".join(sorted({*self._queries, *QUESTION_VERBS}))
            raise RequestError(f"salus-admitd: {request.verb}: no such verb; use one of {verbs}")
        return {"ok": True, **await query(viewer, request.fields)}

    def _answer_question(self, viewer: Viewer, request: Request) -> Any:
        """Answer a question of `salus-acct` or `salus profiles`."""
        fields = {name: value for name, value in request.fields.items() if name != "credential"}
        question = {"verb": request.verb, **fields}
        return answer_question(self._store.open(), viewer, question, now_utc_ns=time.time_ns())

    async def _ping(self, viewer: Viewer, _fields: Mapping[str, Any]) -> dict[str, Any]:
        return {"user": viewer.user, "is_operator": viewer.is_operator}

    async def _jobs(self, viewer: Viewer) -> list[QueuedJob]:
        jobs = await asyncio.to_thread(self.slurm.jobs)
        return [
            job for job in jobs if parse_segment(job.admin_comment) and (viewer.is_operator or job.uid == viewer.uid)
        ]

    async def _status(self, viewer: Viewer, _fields: Mapping[str, Any]) -> dict[str, Any]:
        return {"jobs": [describe(job) for job in await self._jobs(viewer)]}

    async def _why(self, viewer: Viewer, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Why a job has its charge, and which charge it would get if it were submitted now."""
        wanted = str(fields.get("job", ""))
        job = next((job for job in await self._jobs(viewer) if wanted in (str(job.id), job.target)), None)
        if job is None:
            raise AbsentError(
                f"why: job {wanted}: not in the queue, or not yours; if it has ended: salus-acct job {wanted}"
            )
        submission = submission_of(job.uid, fields_of(job))
        lookup = await self._answers.profile_of(submission)
        verdict = self._answers.decide(submission, lookup, "")
        segment = parse_segment(job.admin_comment)
        assert segment is not None
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


def describe(job: QueuedJob) -> dict[str, Any]:
    segment = parse_segment(job.admin_comment)
    assert segment is not None
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
