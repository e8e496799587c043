"""The answers of salus-admitd to job_submit.lua. It gathers what `decision.decide` needs and records each decision.

Nothing here waits for Slurm: its state comes from the catalog, which a background task refreshes.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import structlog

from accounting.records import DETAIL_LENGTH_MAX, NAME_LENGTH_MAX, AdmissionReason, AdmissionRecord, Decision
from nodedaemon.config import Config
from nodedaemon.core.errors import SalusError
from nodedaemon.core.types import Shortfall
from nodedaemon.wire.envelope import Failure, Request
from nodedaemon.wire.segment import AdmissionSegment, parse_segment
from nodedaemon.wire.users import user_name
from slurm_plugin.admitd.catalog import Catalog
from slurm_plugin.admitd.database import ProfileLookup
from slurm_plugin.admitd.decision import AdmissionRules, Verdict, decide, strictest
from slurm_plugin.admitd.decision_queue import DecisionQueue
from slurm_plugin.admitd.jobdesc import TRES_OPTIONS, Submission, read_submission
from slurm_plugin.admitd.profile_cache import ProfileCache
from slurm_plugin.slurm import text_of
from slurm_plugin.slurm.tres import parse_tres

log = structlog.get_logger()

T = TypeVar("T")


@dataclass
class SubmitAnswers:
    """Answers submissions and job changes. The server keeps what it knows about Slurm current.

    `enforced` is what Slurm checks of a job (`read_enforcement`). Until Slurm has answered, nothing counts as checked.
    """

    config: Config
    profiles: ProfileCache
    decisions: DecisionQueue
    catalog: Catalog
    release: tuple[int, int] = (0, 0)
    enforced: frozenset[str] = frozenset()
    #: Set when readmission should look at the queue: a waiting job was changed, or was admitted without a profile.
    is_recheck_wanted: bool = False

    async def profile_of(self, submission: Submission, *, is_fresh: bool = False) -> ProfileLookup:
        find = self.profiles.find_fresh if is_fresh else self.profiles.find
        return await find(user_name(submission.uid), submission.signature)

    def decide(self, submission: Submission, lookup: ProfileLookup, admission: str) -> Verdict:
        if not submission.job.partitions:
            # Slurm fills in the default partition only after this call.
            submission = replace(submission, job=replace(submission.job, partition=self.catalog.default_partition))
        partitions = submission.job.partitions
        devices = self.catalog.for_partitions(partitions)
        is_shared_by_account = self.catalog.is_memory_shared_by_account(partitions)
        rules = [
            AdmissionRules(settings, self.release, self.enforced, is_shared_by_account)
            for settings in self.config.for_partitions(partitions)
        ]
        # Slurm may start the job in any of its partitions, with one charge and one class.
        return strictest([decide(submission, lookup.profile, devices, one, admission, lookup.bound) for one in rules])

    async def answer(self, request: Request) -> dict[str, Any] | Failure:
        """Answer one request of job_submit.lua."""
        match request.verb:
            case "submit":
                return await self.submit(request.fields)
            case "modify":
                return await self.modify(request.fields)
            case "ping":
                return {"ok": True, "is_catalog_ready": self.release > (0, 0)}
        return refused(
            "salus: submit: job_submit.lua and salus-admitd are from different releases; ask your administrator"
        )

    async def submit(self, fields: Mapping[str, Any]) -> dict[str, Any] | Failure:
        submission = read_submission(
            int(fields["uid"]),
            mapping_of(fields, "job"),
            mapping_of(fields, "options"),
            is_batch=fields.get("batch") is True,
        )
        lookup = await self.profile_of(submission)
        verdict = self.decide(submission, lookup, secrets.token_hex(8))
        self.record(submission, verdict, lookup.version if verdict.is_admitted else None)
        # A run that measures this job may be writing its profile right now.
        self.is_recheck_wanted |= verdict.is_admitted and verdict.segment.persistent_bytes is None
        if not verdict.is_admitted:
            return refused(verdict.message)
        return {"ok": True, "set": verdict.changes(submission), "say": verdict.message}

    def record(self, submission: Submission, verdict: Verdict, profile_version: int | None) -> None:
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
                account=submission.job.account[:NAME_LENGTH_MAX],
                partition=",".join(submission.job.partitions)[:NAME_LENGTH_MAX],
                signature=submission.signature[:NAME_LENGTH_MAX],
                profile_version=profile_version,
                persistent_bytes=verdict.segment.persistent_bytes or 0,
                ephemeral_bytes=verdict.segment.ephemeral_bytes or 0,
                charge_bytes=verdict.charge_bytes,
                charge_shards=verdict.segment.shard_count or 0,
                reasons=tuple(reason_of(shortfall) for shortfall in verdict.reasons),
            )
        )

    async def modify(self, fields: Mapping[str, Any]) -> dict[str, Any] | Failure:
        """Answer a change to a waiting job. Its gres may not change; any other change leads to a new decision."""
        changed, old = mapping_of(fields, "job"), mapping_of(fields, "old")
        is_shared = any(tres.name == "salus" for tres in parse_tres(text_of(old, "tres_per_node")))
        if any(text_of(changed, name) for name in TRES_OPTIONS):
            what = "its charge is set by Salus" if is_shared else "salus and shard cannot be added after submission"
            return refused(f"salus: modify: gres of job {fields.get('id', '')}: {what}; cancel it and submit again")
        segment = parse_segment(text_of(old, "admin_comment"))
        if not is_shared or segment is None:
            return {"ok": True}
        submission = submission_of(int(fields["uid"]), {**old, **changed})
        verdict = self.decide(submission, await self.profile_of(submission), segment.admission)
        if not verdict.is_admitted:
            return refused(verdict.message.replace("salus: submit:", "salus: modify:"))
        self.is_recheck_wanted = True
        # Slurm would refuse a user's change to admin_comment; the next round of readmission writes it.
        return {"ok": True, "set": {"tres_per_node": verdict.changes(submission)["tres_per_node"]}}


def submission_of(uid: int, fields: Mapping[str, Any]) -> Submission:
    """An admitted job as a submission again: its options come from the segment."""
    segment = parse_segment(text_of(fields, "admin_comment")) or AdmissionSegment()
    options = {
        "SALUS_SIGNATURE": segment.signature,
        "SALUS_MEM": segment.declared,
        "SALUS_CLASS": segment.job_class,
    }
    is_requeue_allowed = segment.kind == "requeue"
    submission = read_submission(uid, fields, options)
    return replace(submission, problems=(), time_s=segment.time_s, is_requeue_allowed=is_requeue_allowed)


async def answer_or_failure(answer: Awaitable[T]) -> T | Failure:
    """The answer to a request, or the failure that the client gets instead."""
    try:
        return await answer
    except SalusError as error:
        return Failure.of(error)
    except TimeoutError:
        return Failure(why="salus-admitd: no answer in time; try again", kind="unreachable")
    except Exception:  # the handler of a connection: one request must not end the service
        log.exception("request failed")
        return Failure(why="salus-admitd: internal error; ask your administrator")


def refused(why: str) -> Failure:
    """A refusal; job_submit.lua shows `why` to the user."""
    return Failure(why=why, kind="usage")


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
