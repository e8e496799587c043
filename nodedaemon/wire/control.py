"""Requests from Slurm's hooks and commands to salusd, and its answers. salus-admitd answers `why` in the same form.

Each message is one line of JSON; see docs/protocol.md, "Commands and salusd". Sizes are in bytes and times in
nanoseconds, as integers. For a job that the caller may not see, `job`, `user` and `name` are empty.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

# Types for values that any user may send. Control characters would end up in records, tables and logs.
_Text = Annotated[str, msgspec.Meta(max_length=1024, pattern=r"\A[^\x00-\x1f\x7f]*\Z")]
_Bytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
_Seconds = Annotated[int, msgspec.Meta(ge=0, le=10 * 366 * 24 * 3600)]
_Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=3_600_000)]


class JobAtStart(msgspec.Struct, kw_only=True):
    """What slurmctld knows about a job when it starts. `segment` is the job's `salus:` segment."""

    uid: int
    restart: int = 0
    partition: str = ""
    account: str = ""
    qos: str = ""
    segment: str = ""


class JobStart(JobAtStart):
    """From the Prolog. The fields of `JobAtStart` except `uid` are empty if slurmctld did not answer in time."""

    job: str
    user: str = ""
    gpus: str = ""
    sluid: str = ""
    wait_ms: int = 1000


class TaskRequest(msgspec.Struct):
    """From the SPANK plugin: `task_env`, `task_start` and `task_exit`."""

    job: str
    uid: int
    pid: int = 0
    step: str | int = ""
    task: str | int = ""
    cuda: str = ""
    status: int = 0


class JobEnd(msgspec.Struct):
    """From the Epilog."""

    job: str
    uid: int = -1


class RunStart(msgspec.Struct):
    """From `salus run`. Sizes are those that the user declared; 0 means that the profile decides."""

    name: _Text = ""
    signature: _Text = ""
    job_class: _Text = msgspec.field(name="class", default="")
    persistent_bytes: _Bytes = 0
    ephemeral_bytes: _Bytes = 0
    device: _Text = ""
    account: _Text = ""
    remaining_s: _Seconds = 0
    wait_ms: _Milliseconds = 0


class RunWait(msgspec.Struct):
    """From `salus run`, repeated until its job is admitted."""

    job: _Text = ""
    wait_ms: _Milliseconds = 1000


class AdminRequest(msgspec.Struct):
    """From an admin: `policy_set`, `drain`, `resume` and `reload`. `device` may be an index, sent as a number."""

    device: _Text | int = ""
    policy: _Text = ""
    reason: _Text = ""


class ViewRequest(msgspec.Struct):
    """`ping`, `status` and `why`. The job may be sent as a number."""

    job: _Text | int = ""


class SessionStatus(msgspec.Struct, kw_only=True):
    session: int
    job: str
    user: str
    name: str = ""
    device: str
    lane: int | None
    state: str
    job_class: str
    weight: int
    persistent_bytes: int
    ephemeral_bytes: int
    own_bytes: int | None
    service_ns: int
    share_permille: int
    entitled_permille: int
    waited_ns: int
    waiting_ns: int
    iteration_count: int
    handover_count: int
    is_gated: bool
    is_stopped: bool
    is_connected: bool
    pid: int
    reason: str = ""


class LaneProcess(msgspec.Struct, kw_only=True):
    pid: int
    user: str


class LaneStatus(msgspec.Struct, kw_only=True):
    lane: int
    device: str
    state: str
    size_bytes: int
    held_bytes: int | None
    holder: int | None
    sessions: list[int]
    domain: str
    #: Processes without a session that keep its memory, so that it cannot be released.
    kept_by: list[LaneProcess] = []


class DeviceStatus(msgspec.Struct, kw_only=True):
    device: str
    index: int
    name: str
    model: str
    kind: str
    policy: str
    capacity_bytes: int
    persistent_bytes: int
    lane_bytes: int
    free_bytes: int
    foreign_bytes: int | None
    used_bytes: int | None
    busy_permille: int | None
    is_drained: bool
    drain_reason: str
    lost_reason: str | None
    session_count: int
    waiting_count: int
    jain: float | None


class DaemonStatus(msgspec.Struct, kw_only=True):
    version: str
    pid: int
    started_utc_ns: int
    event_count: int
    journal_fault: str
    spool_records: int
    spool_dropped: int
    is_database_up: bool
    database_error: str
    is_gathering: bool
    reload_error: str = ""


class NodeStatus(msgspec.Struct, kw_only=True):
    ok: bool = True
    node: str
    cluster: str
    now_utc_ns: int
    daemon: DaemonStatus
    devices: list[DeviceStatus]
    lanes: list[LaneStatus]
    sessions: list[SessionStatus]


class Reason(msgspec.Struct, kw_only=True):
    """One reason why a job or session does not run now. `unit` is the unit of `needed` and `free`."""

    what: str
    needed: int | None = None
    free: int | None = None
    unit: str = ""
    advice: str = ""


class WhatIf(msgspec.Struct, kw_only=True):
    """A change that was tried on a copy of the engine, and after how many boundaries the session would then run."""

    change: str
    is_served: bool
    boundary_count: int | None = None


class SessionWhy(msgspec.Struct, kw_only=True):
    session: int
    device: str
    state: str
    reasons: list[Reason]
    changes: list[WhatIf]


class ProfileSummary(msgspec.Struct, kw_only=True):
    """The profile that admission uses for the job."""

    persistent_bytes: int
    ephemeral_bytes: int
    run_count: int


class Charge(msgspec.Struct, kw_only=True):
    """What Slurm counts for a job: `shards`, or a whole device if that is None. `basis` says where it comes from."""

    is_admitted: bool = True
    kind: str = ""
    job_class: str = msgspec.field(name="class", default="")
    shards: int | None = None
    bytes: int | None = None
    basis: str = ""
    reasons: list[Reason] = []


class AdmissionWhy(msgspec.Struct, kw_only=True):
    """The charge that the job has, and the one that it would get if it were submitted now."""

    charge: Charge
    now: Charge
    profile: ProfileSummary | None = None


class WhyAnswer(msgspec.Struct, kw_only=True):
    """The answer to `why`, from salusd or from salus-admitd.

    salusd fills in `sessions`. salus-admitd, which knows the queue, fills in `reasons` and `admission`.
    """

    ok: bool = True
    job: str
    user: str
    state: str
    reasons: list[Reason] = []
    sessions: list[SessionWhy] = []
    admission: AdmissionWhy | None = None
