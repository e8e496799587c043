"""What commands on login nodes may ask salus-admitd: own jobs and profiles for users, all for operators.

The asker is a Viewer made from a checked credential; every answer is filtered by it here or in the stores.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import msgspec

from accounting.profiles import list_profiles
from accounting.service import answer
from accounting.viewer import AbsentError, DeniedError, Viewer
from nodedaemon.core.errors import RequestError
from nodedaemon.wire.control import AdmissionWhy, Charge, ProfileSummary, Reason, WhyAnswer
from nodedaemon.wire.segment import parse_segment
from nodedaemon.wire.users import user_name
from slurm_plugin.admitd.answers import SubmitAnswers, submission_of
from slurm_plugin.admitd.database import DatabaseRecords
from slurm_plugin.admitd.readmission import fields_of
from slurm_plugin.slurm import QueuedJob, Slurm

Query = Callable[[Viewer, Mapping[str, Any]], Awaitable[dict[str, Any]]]


def viewer_of(uid: int, operators: tuple[str, ...], admins: tuple[str, ...]) -> Viewer:
    user = user_name(uid)
    return Viewer(uid=uid, user=user, is_operator=uid == 0 or user in operators or user in admins)


class Queries:
    def __init__(self, admission: SubmitAnswers, slurm: Slurm, records: DatabaseRecords) -> None:
        self._admission = admission
        self.slurm = slurm
        self._records = records
        self._verbs: dict[str, Query] = {
            "ping": self._ping,
            "status": self._status,
            "why": self._why,
            "profiles": self._profiles,
            "accounting": self._accounting,
        }

    async def answer(self, viewer: Viewer, request: Mapping[str, Any]) -> dict[str, Any]:
        verb = self._verbs.get(str(request.get("op")))
        if verb is None:
            raise RequestError(
                f"salus-admitd: {request.get('op')}: unknown request; known are {', '.join(self._verbs)}"
            )
        return {"ok": True, **await verb(viewer, request)}

    async def _ping(self, viewer: Viewer, _request: Mapping[str, Any]) -> dict[str, Any]:
        return {"user": viewer.user, "is_operator": viewer.is_operator}

    async def _jobs(self, viewer: Viewer) -> list[QueuedJob]:
        jobs = await asyncio.to_thread(self.slurm.jobs)
        return [
            job for job in jobs if parse_segment(job.admin_comment) and (viewer.is_operator or job.uid == viewer.uid)
        ]

    async def _status(self, viewer: Viewer, _request: Mapping[str, Any]) -> dict[str, Any]:
        return {"jobs": [describe(job) for job in await self._jobs(viewer)]}

    async def _why(self, viewer: Viewer, request: Mapping[str, Any]) -> dict[str, Any]:
        """Why a job has its charge, and what it would be if it were submitted now."""
        wanted = str(request.get("job", ""))
        found = next((job for job in await self._jobs(viewer) if wanted in (str(job.id), job.target)), None)
        if found is None:
            raise AbsentError(
                f"why: job {wanted}: not in the queue, or not yours; if it has ended: salus-acct job {wanted}"
            )
        submission = submission_of(found.uid, fields_of(found))
        known = await self._admission.known(submission)
        verdict = self._admission.decide(submission, known, "")
        profile = known.profile
        segment = parse_segment(found.admin_comment)
        assert segment is not None
        told = WhyAnswer(
            job=found.target,
            user=found.user,
            state=found.state,
            reasons=[Reason(what=found.reason)] if found.reason else [],
            admission=AdmissionWhy(
                charge=Charge(kind=segment.kind, job_class=segment.job_class, shards=segment.shard_count),
                profile=None
                if profile is None
                else ProfileSummary(
                    persistent_bytes=profile.persistent_bytes,
                    ephemeral_bytes=profile.ephemeral_bytes,
                    run_count=profile.run_count,
                ),
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
        return cast(dict[str, Any], msgspec.to_builtins(told))

    async def _profiles(self, viewer: Viewer, request: Mapping[str, Any]) -> dict[str, Any]:
        signature = request.get("signature")
        found = await asyncio.to_thread(
            lambda: list_profiles(
                self._records.open(),
                viewer,
                cluster=self._admission.config.settings.cluster.name,
                signature=signature if isinstance(signature, str) else None,
            )
        )
        return {"profiles": [msgspec.to_builtins(view) for view in found]}

    async def _accounting(self, viewer: Viewer, request: Mapping[str, Any]) -> dict[str, Any]:
        """What `salus-acct` and `salus profiles` ask; accounting.service knows the questions."""
        question = request.get("ask")
        if not isinstance(question, dict):
            raise RequestError("salus-admitd: accounting: no question; is the command as old as the server?")
        told = await asyncio.to_thread(
            lambda: answer(self._records.open(), viewer, question, now_utc_ns=time.time_ns())
        )
        return {"answer": told}


def describe(job: QueuedJob) -> dict[str, Any]:
    segment = parse_segment(job.admin_comment)
    assert segment is not None
    return {
        "id": job.id,
        "target": job.target,
        "user": job.user,
        "account": job.account,
        "partition": job.partition,
        "name": job.name,
        "state": job.state,
        "reason": job.reason,
        "nodes": job.nodes,
        "shards": segment.shard_count,
        "kind": segment.kind,
        "class": segment.job_class,
        "persistent_bytes": segment.persistent_bytes,
        "ephemeral_bytes": segment.ephemeral_bytes,
        "signature": segment.signature,
        "admission": segment.admission,
    }


def kind_of(error: RequestError) -> str:
    """The word by which a client chooses its exit code."""
    if isinstance(error, DeniedError):
        return "not_permitted"
    return "not_found" if isinstance(error, AbsentError) else "usage"
