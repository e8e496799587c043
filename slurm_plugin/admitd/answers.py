"""The answers of salus-admitd to job_submit.lua. It gathers what `decision.decide` needs and records each decision.

Nothing here waits for Slurm: its state comes from the catalog, which a background task refreshes.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import structlog

from accounting.records import DETAIL_LENGTH_MAX, NAME_LENGTH_MAX, AdmissionReason, AdmissionRecord, Decision
from nodedaemon.config import Config
from nodedaemon.core.types import Shortfall
from nodedaemon.wire.envelope import Failure, Request
from nodedaemon.wire.segment import parse_segment
from nodedaemon.wire.users import user_name
from slurm_plugin.admitd.catalog import Catalog
from slurm_plugin.admitd.decision import AdmissionRules, ProfileLookup, Verdict, class_problem, decide
from slurm_plugin.admitd.decision_queue import DecisionQueue
from slurm_plugin.admitd.jobdesc import (
    TRES_FIELDS,
    Submission,
    parse_size,
    read_submission,
    text_of,
)
from slurm_plugin.admitd.profile_cache import ProfileCache
from slurm_plugin.slurm import GPU_APART_RELEASE
from slurm_plugin.slurm.tres import parse_tres

log = structlog.get_logger()


@dataclass
class SubmitAnswers:
    """Answers submits and changes of jobs. `catalog` and `release` describe Slurm; the server keeps them current."""

    config: Config
    profiles: ProfileCache
    decisions: DecisionQueue
    catalog: Catalog
    release: tuple[int, int] = (0, 0)
    #: Readmission should look at the queue: a waiting job was changed, or was admitted without a profile.
    is_recheck_wanted: bool = False

    def in_partition(self, submission: Submission) -> Submission:
        """The submission with the default partition if it names none: Slurm fills it in only after the submit."""
        if submission.partitions or not self.catalog.default_partition:
            return submission
        return replace(submission, partitions=(self.catalog.default_partition,))

    def rules(self, submission: Submission) -> AdmissionRules:
        settings = self.config.for_partition(submission.partitions[0] if submission.partitions else "")
        return AdmissionRules(
            unknown_job=settings.admission.unknown_job,
            headroom_percent=settings.lanes.headroom_percent,
            probe_task_count=settings.admission.probe_tasks,
            default_class=settings.order.default_class,
            high_qos=frozenset(settings.order.high_qos),
            high_accounts=frozenset(settings.order.high_accounts),
            high_partitions=frozenset(settings.order.high_partitions),
            is_whole_device_gpu=self.release >= GPU_APART_RELEASE,
        )

    async def profile_of(self, submission: Submission, *, is_fresh: bool = False) -> ProfileLookup:
        find = self.profiles.find_fresh if is_fresh else self.profiles.find
        return await find(user_name(submission.uid), submission.signature)

    def decide(self, submission: Submission, lookup: ProfileLookup, admission: str) -> Verdict:
        submission = self.in_partition(submission)
        devices = self.catalog.for_partitions(submission.partitions)
        return decide(submission, lookup, devices, self.rules(submission), admission)

    async def answer(self, request: Request) -> dict[str, Any]:
        """Answer one request of job_submit.lua."""
        match request.verb:
            case "submit":
                return await self.submit(request.fields)
            case "modify":
                return await self.modify(request.fields)
            case "ping":
                return {"ok": True, "is_catalog_ready": self.release > (0, 0)}
        return refused(
            "salus: submit: job_submit.lua and salus-admitd are of different releases; ask your administrator"
        )

    async def submit(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        submission = read_submission(
            int(fields["uid"]),
            mapping_of(fields, "job"),
            mapping_of(fields, "options"),
            is_batch=fields.get("batch") is True,
        )
        verdict = self.decide(submission, await self.profile_of(submission), secrets.token_hex(8))
        self.record(submission, verdict)
        # A run that measures this job may be writing its profile right now.
        self.is_recheck_wanted |= verdict.is_admitted and verdict.segment.persistent_bytes is None
        if not verdict.is_admitted:
            return refused(verdict.say)
        return {"ok": True, "set": verdict.changes(submission), "say": verdict.say}

    def record(self, submission: Submission, verdict: Verdict) -> None:
        decision: Decision = "admit" if verdict.is_admitted else "refuse"
        log.info("decided", uid=submission.uid, decision=decision, basis=verdict.basis, signature=submission.signature,
                 shards=verdict.segment.shard_count, admission=verdict.segment.admission)  # fmt: skip
        self.decisions.record(
            AdmissionRecord(
                admission=verdict.segment.admission or secrets.token_hex(8),
                cluster=self.config.settings.cluster.name,
                decided_utc_ns=time.time_ns(),
                decision=decision,
                basis=verdict.basis,
                user=user_name(submission.uid),
                uid=submission.uid,
                account=submission.account[:NAME_LENGTH_MAX],
                partition=",".join(submission.partitions)[:NAME_LENGTH_MAX],
                signature=submission.signature[:NAME_LENGTH_MAX],
                profile_version=verdict.profile_version,
                persistent_bytes=verdict.segment.persistent_bytes or 0,
                ephemeral_bytes=verdict.segment.ephemeral_bytes or 0,
                charge_bytes=verdict.charge_bytes,
                charge_shards=verdict.segment.shard_count or 0,
                reasons=tuple(reason_of(shortfall) for shortfall in verdict.reasons),
            )
        )

    async def modify(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a change of a waiting job. Its gres may not change; anything else is decided again."""
        changed, old = mapping_of(fields, "job"), mapping_of(fields, "old")
        is_shared = any(tres.name == "salus" for tres in parse_tres(text_of(old, "tres_per_node")))
        if any(text_of(changed, name) for name in TRES_FIELDS):
            what = "its charge is set by Salus" if is_shared else "ask for salus and shard at submit"
            return refused(f"salus: modify: gres of job {fields.get('id', '')}: {what}; cancel it and submit again")
        segment = parse_segment(text_of(old, "admin_comment"))
        if not is_shared or segment is None:
            return {"ok": True}
        merged = {**old, **changed}
        submission = submission_of(int(fields["uid"]), merged)
        submission = self.in_partition(submission)
        wrong_class = class_problem(submission, self.rules(submission))
        if wrong_class:
            return refused(f"salus: modify: {wrong_class}")
        verdict = self.decide(submission, await self.profile_of(submission), segment.admission)
        if not verdict.is_admitted:
            return refused(verdict.say.replace("salus: submit:", "salus: modify:"))
        self.is_recheck_wanted = True
        # Slurm would refuse a user's change of admin_comment; the next round of readmission writes it.
        return {"ok": True, "set": {"tres_per_node": verdict.changes(submission)["tres_per_node"]}}


def submission_of(uid: int, fields: Mapping[str, Any]) -> Submission:
    """An admitted job as a submission again: its options come from the segment."""
    segment = parse_segment(text_of(fields, "admin_comment"))
    submission = replace(read_submission(uid, fields, {}), problems=())
    if segment is None:
        return submission
    sizes = [parse_size(part) for part in segment.declared.split(",")] if segment.declared else []
    return replace(
        submission,
        signature=segment.signature,
        declared=segment.declared,
        declared_persistent_bytes=sizes[0] if sizes else None,
        declared_ephemeral_bytes=(sizes[1] or 0) if len(sizes) > 1 else 0,
        job_class=segment.job_class,
        time_s=segment.time_s,
        is_requeue_allowed=segment.kind == "requeue",
    )


def refused(why: str) -> dict[str, Any]:
    """A refusal; job_submit.lua shows `why` to the user."""
    answer: dict[str, Any] = msgspec.to_builtins(Failure(why=why, kind="usage"))
    return answer


def mapping_of(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = fields.get(name)
    return value if isinstance(value, Mapping) else {}


def reason_of(shortfall: Shortfall) -> AdmissionReason:
    return AdmissionReason(
        what=shortfall.what[:NAME_LENGTH_MAX] or "unknown",
        needed=shortfall.needed,
        free=shortfall.free,
        unit=shortfall.unit[:32],
        advice=shortfall.advice[:DETAIL_LENGTH_MAX],
    )
