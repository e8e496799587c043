"""Decides a submission: fields, profile and devices in, a `Verdict` out. Pure, and based on core.admission.

A job never gets a charge below its measured memory, even if its user has forgotten the profile. A measured job is
charged by its profile with headroom. A declaration may raise that charge, never lower it. An unmeasured job follows
`UnknownJob`. A job that cannot share any device but fits one alone gets a whole device.

A user writes the account and the QOS of a job. They count only if Slurm checks them (`AccountingStorageEnforce`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from accounting.records import Basis
from nodedaemon.config import Settings
from nodedaemon.config.choices import UnknownJob
from nodedaemon.core.admission import Admit, DeviceView, Refuse, admit_any
from nodedaemon.core.memory import charge_bytes, charge_units, round_up, with_headroom
from nodedaemon.core.types import JobClass, Profile, Shortfall
from nodedaemon.wire.segment import AdmissionSegment, merge_segment
from slurm_plugin.admitd.jobdesc import Submission
from slurm_plugin.slurm import ENFORCEMENT_KEY, GPU_APART_RELEASE, JobDescription
from slurm_plugin.slurm.tres import array_throttle, charged_tres

#: More than any ProbeTasks, to compare it with 0, which means no limit.
PROBES_UNLIMITED = 1_000_000


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """The settings of a job's partition, Slurm's release, and what Slurm checks (`read_enforcement`)."""

    settings: Settings
    release: tuple[int, int]
    enforced: frozenset[str] = frozenset()
    #: Whether a node that the job may get has LaneSharing=account.
    is_memory_shared_by_account: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision and everything recorded about it. `message` is for the user; `reasons` explain a refusal."""

    is_admitted: bool
    basis: Basis
    message: str
    segment: AdmissionSegment
    charge_bytes: int = 0
    reasons: tuple[Shortfall, ...] = ()
    #: How many tasks of an unmeasured array may run until it is measured; 0 means no limit.
    probe_task_count: int = 0

    def changes(self, submission: Submission) -> dict[str, str]:
        """The fields of the job description to set."""
        if not self.is_admitted:
            return {}
        changed = {
            "tres_per_node": charged_tres(submission.job.tres_per_node, self.segment.shard_count),
            "admin_comment": merge_segment(submission.job.admin_comment, self.segment),
        }
        if self.probe_task_count:
            changed["array_inx"] = f"{array_throttle(submission.array)[0]}%{self.probe_task_count}"
        return changed


def refuse(
    problems: Sequence[str], reasons: Sequence[Shortfall] = (), segment: AdmissionSegment | None = None
) -> Verdict:
    shortfalls = tuple(reasons) or tuple(Shortfall(problem[:128], 1, 0, "requests") for problem in problems)
    message = "\n".join(f"salus: submit: {problem}" for problem in problems)
    return Verdict(
        is_admitted=False, basis="none", message=message, segment=segment or AdmissionSegment(), reasons=shortfalls
    )


def high_problem(job: JobDescription, rules: AdmissionRules) -> str | None:
    """Why a job may not have class high; None if its QOS, its account or all its partitions allow it."""
    order = rules.settings.order
    if job.partitions and set(job.partitions) <= set(order.high_partitions):
        return None
    names = {"qos": job.qos in order.high_qos, "associations": job.account in order.high_accounts}
    needed = [name for name, is_listed in names.items() if is_listed]
    if not needed:
        return (
            "neither the QOS, the account nor the partition of this job allows it; "
            "leave it out or ask an admin (HighQOS, HighAccounts, HighPartitions)"
        )
    if rules.enforced.intersection(needed):
        return None
    return (
        f"Slurm does not check whether you may use this QOS or account ({ENFORCEMENT_KEY} lacks "
        f"{' or '.join(needed)}); leave it out or ask an admin"
    )


def strictest(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on a job that may run in several partitions, from the verdicts by the rules of each of them.

    A refusal wins. Otherwise the job gets the largest charge, the lowest class and the lowest limit of its array.
    """
    refusal = next((verdict for verdict in verdicts if not verdict.is_admitted), None)
    if refusal is not None:
        return refusal
    classes = [job_class for one in verdicts if (job_class := JobClass.named(one.segment.job_class)) is not None]
    largest = max(
        verdicts,
        key=lambda one: (
            one.charge_bytes,
            one.segment.kind == "exclusive",
            -(one.probe_task_count or PROBES_UNLIMITED),
        ),
    )
    segment = msgspec.structs.replace(largest.segment, job_class=str(max(classes)))
    return replace(largest, segment=segment)


def decide(
    submission: Submission,
    measured: Profile | None,
    devices: Sequence[DeviceView],
    rules: AdmissionRules,
    admission: str,
    bound: Profile | None = None,
) -> Verdict:
    """Decide one submission. `devices` are those that the job may get; `admission` is the id of the decision.

    `bound` has the measured sizes of a profile that its user has forgotten.
    """
    settings, problems = rules.settings, list(submission.problems)
    if submission.job_class == str(JobClass.HIGH) and (why := high_problem(submission.job, rules)):
        problems.append(f"--salus-class=high: {why}")
    if rules.is_memory_shared_by_account and "associations" not in rules.enforced:
        problems.append(
            "jobs of one account share memory here (LaneSharing=account), but Slurm lets any user name any account "
            f"({ENFORCEMENT_KEY} lacks associations); ask an admin"
        )
    if problems:
        return refuse(problems)
    if not devices:
        return refuse(["Salus manages no device in this partition; choose another with -p or ask an admin"])
    segment = AdmissionSegment(
        admission=admission,
        job_class=submission.job_class or str(settings.order.default_class),
        time_s=submission.time_s,
        signature=submission.signature,
        declared=submission.declared,
    )
    declared = submission.declared_bytes
    if measured is None and (declared is None or settings.admission.unknown_job is UnknownJob.REFUSE):
        return _unmeasured(submission, segment, devices, rules)
    persistent, ephemeral = map(round_up, declared or (0, 0))
    bound = measured or bound
    if bound:
        headroom = settings.lanes.headroom_percent
        persistent = max(persistent, with_headroom(bound.persistent_bytes, headroom))
        ephemeral = max(ephemeral, with_headroom(bound.ephemeral_bytes, headroom))
    segment = msgspec.structs.replace(segment, persistent_bytes=persistent, ephemeral_bytes=ephemeral)
    return _shared(segment, devices, rules, "profile" if measured else "declared")


def _shared(segment: AdmissionSegment, devices: Sequence[DeviceView], rules: AdmissionRules, basis: Basis) -> Verdict:
    persistent, ephemeral = segment.persistent_bytes or 0, segment.ephemeral_bytes or 0
    # Slurm counts one charge for the job, whichever device it picks: the smallest reserve gives the largest charge.
    reserve = min(device.lane_reserve_bytes for device in devices)
    units = charge_units(persistent, ephemeral, reserve, devices[0].unit_bytes)
    decision = admit_any(persistent, ephemeral, devices)
    if isinstance(decision, Admit) and units <= max(device.units_total for device in devices):
        segment = msgspec.structs.replace(segment, shard_count=units, kind="shared")
        charged = charge_bytes(persistent, ephemeral, reserve)
        return Verdict(is_admitted=True, basis=basis, message="", segment=segment, charge_bytes=charged)
    if persistent + ephemeral <= max(device.capacity_bytes for device in devices):
        return _whole_device(segment, devices, rules, basis)
    reasons = decision.shortfalls if isinstance(decision, Refuse) else ()
    unique = tuple(dict.fromkeys(replace(reason, what="memory of a device") for reason in reasons))
    return refuse([reason.text() for reason in unique] or ["no device can hold this job"], unique, segment)


def _whole_device(
    segment: AdmissionSegment, devices: Sequence[DeviceView], rules: AdmissionRules, basis: Basis
) -> Verdict:
    units = max(device.units_total for device in devices)
    shard_count = None if rules.release >= GPU_APART_RELEASE else units
    kind = "requeue" if basis == "requeue" else "exclusive"
    segment = msgspec.structs.replace(segment, shard_count=shard_count, kind=kind)
    charged = units * devices[0].unit_bytes
    return Verdict(is_admitted=True, basis=basis, message="", segment=segment, charge_bytes=charged)


def _unmeasured(
    submission: Submission, segment: AdmissionSegment, devices: Sequence[DeviceView], rules: AdmissionRules
) -> Verdict:
    rule, probes = rules.settings.admission.unknown_job, rules.settings.admission.probe_tasks
    if rule is UnknownJob.REFUSE:
        return refuse(["this job was never measured, and such jobs are refused here; ask an admin to measure it"])
    if rule is UnknownJob.DECLARED:
        return refuse(["this job was never measured; declare its memory with --salus-mem=P,E (persistent, ephemeral)"])
    may_requeue = submission.is_batch and submission.is_requeue_allowed and not submission.array
    basis: Basis = "requeue" if rule is UnknownJob.REQUEUE and may_requeue else "exclusive"
    text = "salus: this job is not known yet: its first run gets a device of its own and is measured"
    limit = array_throttle(submission.array)[1]
    if not submission.array or not probes or (limit is not None and limit <= probes):
        return replace(_whole_device(segment, devices, rules, basis), message=text)
    text += f"; {probes} task(s) of the array start now, and the rest once it is measured"
    # Readmission restores the user's own limit from the segment once the job is measured.
    segment = msgspec.structs.replace(segment, throttle=limit or 0)
    return replace(_whole_device(segment, devices, rules, basis), message=text, probe_task_count=probes)
