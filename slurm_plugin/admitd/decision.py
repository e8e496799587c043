"""Decides a submission: its fields, its profile and the devices in, a `Verdict` out. Pure, by core.admission.

A job never gets a charge below its measured memory. A measured job is charged by its profile with headroom. A
declaration may raise that charge, never lower it. An unmeasured job follows `UnknownJob`. A job that cannot share any
device but fits one alone gets a whole device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from accounting.records import Basis
from nodedaemon.config.choices import UnknownJob
from nodedaemon.core.admission import Admit, DeviceView, JobRequest, Refuse, admit_any
from nodedaemon.core.memory import charge_bytes, charge_units, round_up, with_headroom
from nodedaemon.core.types import JobClass, Profile, Shortfall
from nodedaemon.wire.segment import AdmissionSegment, merge_segment
from slurm_plugin.admitd.jobdesc import Submission
from slurm_plugin.slurm.tres import array_throttle, charged_tres


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """The settings of salus.conf for a job's partition."""

    unknown_job: UnknownJob = UnknownJob.EXCLUSIVE
    headroom_percent: int = 10
    probe_task_count: int = 0
    default_class: JobClass = JobClass.NORMAL
    high_qos: frozenset[str] = frozenset()
    high_accounts: frozenset[str] = frozenset()
    high_partitions: frozenset[str] = frozenset()
    #: A whole device is charged as gres/gpu, not as all its shards: see GPU_APART_RELEASE.
    is_whole_device_gpu: bool = False


@dataclass(frozen=True, slots=True)
class ProfileLookup:
    """The stored profile of a job and its version; both are None if the job was never measured."""

    profile: Profile | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision and everything recorded about it. `say` is shown to the user; `reasons` explain a refusal."""

    is_admitted: bool
    basis: Basis
    say: str
    segment: AdmissionSegment
    charge_bytes: int = 0
    profile_version: int | None = None
    reasons: tuple[Shortfall, ...] = ()
    #: How many tasks of an unmeasured array may run until it is measured; 0 does not limit it.
    probe_task_count: int = 0

    def changes(self, submission: Submission) -> dict[str, str]:
        """The fields of the job description to set."""
        if not self.is_admitted:
            return {}
        changed = {
            "tres_per_node": charged_tres(submission.tres_text, self.segment.shard_count),
            "admin_comment": merge_segment(submission.admin_comment, self.segment),
        }
        if self.probe_task_count:
            changed["array_inx"] = f"{array_throttle(submission.array)[0]}%{self.probe_task_count}"
        return changed


def refuse(
    problems: Sequence[str], reasons: Sequence[Shortfall] = (), segment: AdmissionSegment | None = None
) -> Verdict:
    shortfalls = tuple(reasons) or tuple(Shortfall(problem[:128], 1, 0, "requests") for problem in problems)
    say = "\n".join(f"salus: submit: {problem}" for problem in problems)
    return Verdict(is_admitted=False, basis="none", say=say, segment=segment or AdmissionSegment(), reasons=shortfalls)


def class_problem(submission: Submission, rules: AdmissionRules) -> str | None:
    """Why the job may not have class high, or None: class high needs an allowed QOS, account or partition."""
    if submission.job_class != str(JobClass.HIGH):
        return None
    if (
        submission.qos in rules.high_qos
        or submission.account in rules.high_accounts
        or (submission.partitions and set(submission.partitions) <= rules.high_partitions)
    ):
        return None
    return (
        "--salus-class=high: neither the QOS, the account nor the partition of this job allows it; "
        "leave it out or ask an admin (HighQOS, HighAccounts, HighPartitions)"
    )


def decide(
    submission: Submission, lookup: ProfileLookup, devices: Sequence[DeviceView], rules: AdmissionRules, admission: str
) -> Verdict:
    """Decide one submission. `devices` are those that the job may get; `admission` is the id of the decision."""
    problems = list(submission.problems)
    wrong_class = class_problem(submission, rules)
    if wrong_class:
        problems.append(wrong_class)
    if problems:
        return refuse(problems)
    if not devices:
        return refuse(["no device that Salus manages is known in this partition; name another with -p or ask an admin"])
    segment = AdmissionSegment(
        admission=admission,
        job_class=submission.job_class or str(rules.default_class),
        time_s=submission.time_s,
        signature=submission.signature,
        declared=submission.declared,
    )
    measured = lookup.profile
    if measured is None and submission.declared_persistent_bytes is None:
        return _unmeasured(submission, segment, devices, rules)
    if measured is None and rules.unknown_job is UnknownJob.REFUSE:
        return _unmeasured(submission, segment, devices, rules)
    persistent = with_headroom(measured.persistent_bytes, rules.headroom_percent) if measured else 0
    ephemeral = with_headroom(measured.ephemeral_bytes, rules.headroom_percent) if measured else 0
    persistent = max(persistent, round_up(submission.declared_persistent_bytes or 0))
    ephemeral = max(ephemeral, round_up(submission.declared_ephemeral_bytes))
    segment = msgspec.structs.replace(segment, persistent_bytes=persistent, ephemeral_bytes=ephemeral)
    return _shared(segment, lookup, devices, rules, "profile" if measured else "declared")


def _shared(
    segment: AdmissionSegment, lookup: ProfileLookup, devices: Sequence[DeviceView], rules: AdmissionRules, basis: Basis
) -> Verdict:
    persistent, ephemeral = segment.persistent_bytes or 0, segment.ephemeral_bytes or 0
    request = JobRequest(persistent, ephemeral)
    # Slurm counts one charge for the job, whichever device it picks: the smallest reserve gives the largest charge.
    reserve = min(device.lane_reserve_bytes for device in devices)
    unit = devices[0].unit_bytes
    units = charge_units(persistent, ephemeral, reserve, unit)
    decision = admit_any(request, [replace(device, units_free=None, is_available=True) for device in devices])
    if isinstance(decision, Admit) and units <= max(device.units_total for device in devices):
        return Verdict(
            is_admitted=True,
            basis=basis,
            say="",
            segment=msgspec.structs.replace(segment, shard_count=units, kind="shared"),
            charge_bytes=charge_bytes(persistent, ephemeral, reserve),
            profile_version=lookup.version,
        )
    if persistent + ephemeral <= max(device.capacity_bytes for device in devices):
        verdict = _whole_device(segment, devices, rules, basis)
        return replace(verdict, profile_version=lookup.version)
    reasons = decision.shortfalls if isinstance(decision, Refuse) else ()
    unique = tuple(dict.fromkeys(replace(reason, what="memory of a device") for reason in reasons))
    return refuse([reason.text() for reason in unique] or ["no device can hold this job"], unique, segment)


def _whole_device(
    segment: AdmissionSegment,
    devices: Sequence[DeviceView],
    rules: AdmissionRules,
    basis: Basis,
    kind: str = "exclusive",
) -> Verdict:
    units = max(device.units_total for device in devices)
    return Verdict(
        is_admitted=True,
        basis=basis,
        say="",
        segment=msgspec.structs.replace(segment, shard_count=None if rules.is_whole_device_gpu else units, kind=kind),
        charge_bytes=units * devices[0].unit_bytes,
    )


def _unmeasured(
    submission: Submission, segment: AdmissionSegment, devices: Sequence[DeviceView], rules: AdmissionRules
) -> Verdict:
    rule = rules.unknown_job
    if rule is UnknownJob.REFUSE:
        return refuse(["this job was never measured, and such jobs are refused here; ask an admin to measure it"])
    if rule is UnknownJob.DECLARED:
        return refuse(["this job was never measured; declare its memory with --salus-mem=P,E (kept, borrowed)"])
    may_requeue = submission.is_batch and submission.is_requeue_allowed and not submission.array
    is_requeue = rule is UnknownJob.REQUEUE and may_requeue
    kind: Basis = "requeue" if is_requeue else "exclusive"
    verdict = _whole_device(segment, devices, rules, kind, kind)
    text = "salus: this job is not known yet: its first run gets a device of its own and is measured"
    limit = array_throttle(submission.array)[1]
    probes = rules.probe_task_count
    if submission.array and probes and (limit is None or limit > probes):
        text += f"; {probes} task(s) of the array start, the rest follow once it is known"
        # Readmission restores the user's own limit from the segment once the job is measured.
        return replace(
            verdict,
            say=text,
            probe_task_count=probes,
            segment=msgspec.structs.replace(verdict.segment, throttle=limit or 0),
        )
    return replace(verdict, say=text)
