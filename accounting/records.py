"""What daemons send to accounting: one record per fact, with a natural key, so that replaying a record changes nothing.

A record contains everything that its sender knows, never a difference: a session's end record repeats its start.
Durations come from the monotonic clock, dates from UTC. `encode` and `decode` define the spool's format. Nothing here
imports SQLAlchemy. docs/accounting.md defines the terms.
"""

from enum import IntEnum
from functools import lru_cache
from typing import Annotated, Literal

import msgspec

from nodedaemon.core.errors import PeerError

NAME_LENGTH_MAX = 128
DETAIL_LENGTH_MAX = 1024

# Limited to what a signed 64-bit column holds; a larger value from a peer is garbage.
Whole = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_LENGTH_MAX)]
OptionalName = Annotated[str, msgspec.Meta(max_length=NAME_LENGTH_MAX)]

Decision = Literal["admit", "defer", "refuse"]
# What an admission was based on: a measured profile, the user's declaration, or the rule for unknown jobs (exclusive or
# requeue). A refusal has none.
Basis = Literal["profile", "declared", "exclusive", "requeue", "none"]
EventKind = Literal[
    "overrun",
    "xid",
    "device_lost",
    "device_recovered",
    "foreign_memory",
    "lane_kept",
    "claim_waited",
    "hung",
    "ended_by_salus",
    "ungated",
    "clock_stepped",
    "spool_dropped",
    "profile_stale",
]


# Records never form cycles, so the garbage collector need not track them. With a full spool, it would take a third of
# the ledger's time.
class _Struct(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    pass


class JobKey(_Struct, frozen=True, kw_only=True, gc=False, order=True, cache_hash=True):
    """One run of a job. A requeue increments `restart_count`. `sluid` is Slurm's unique id (since 26.05) or empty.

    Without Slurm, `cluster` is "local@NODE" and the daemon numbers the jobs.
    """

    cluster: Name
    job_id: Whole
    restart_count: Whole = 0
    sluid: OptionalName = ""


class Source(IntEnum):
    """Who reported when a job ran. The higher value wins, because held time must agree with sacct."""

    NODE = 1
    SLURM = 2


class _Record(_Struct, frozen=True, kw_only=True, gc=False, tag=True):
    pass


class _SessionBase(_Record, frozen=True, kw_only=True, gc=False):
    """The fields that records of sessions, lane spans and usage have in common."""

    job: JobKey
    node: Name
    device: Name
    incarnation: Name
    start_utc_ns: Whole
    start_mono_ns: Whole


class _UseBase(_SessionBase, frozen=True, kw_only=True, gc=False):
    """The fields that records of sessions and of usage have in common."""

    iteration_count: Whole = 0
    handover_count: Whole = 0
    persistent_bytes_max: Whole = 0
    ephemeral_bytes_max: Whole = 0


class _DaemonBase(_Record, frozen=True, kw_only=True, gc=False):
    """The daemon that sends a record, for records that need not belong to a job."""

    cluster: Name
    node: Name
    incarnation: Name


class _SubmitBase(_Record, frozen=True, kw_only=True, gc=False):
    """What is known about a job when it is submitted."""

    user: OptionalName = ""
    uid: Whole | None = None
    account: OptionalName = ""
    partition: OptionalName = ""
    signature: OptionalName = ""


class IncarnationRecord(_DaemonBase, frozen=True, kw_only=True, gc=False):
    """One run of a daemon, from start to stop. `incarnation` is a random UUID."""

    boot_id: OptionalName = ""
    version: OptionalName = ""
    started_utc_ns: Whole
    started_mono_ns: Whole
    stopped_utc_ns: Whole | None = None


class DeviceRecord(_Record, frozen=True, kw_only=True, gc=False):
    """A device as the daemon found it. Sent at every start and whenever the device changes."""

    cluster: Name
    node: Name
    device: Name
    index: Whole = 0
    model: Name
    capacity_bytes: Whole
    lane_reserve_bytes: Whole = 0
    seen_utc_ns: Whole


class AccountRecord(_Record, frozen=True, kw_only=True, gc=False):
    """A Slurm account and its parent account, empty if it has none."""

    cluster: Name
    account: Name
    parent: OptionalName = ""
    seen_utc_ns: Whole


class JobRecord(_SubmitBase, frozen=True, kw_only=True, gc=False):
    """A run of a job. Unknown fields are empty or None and never overwrite a known value.

    `device_count` is the job's gres/salus count over all nodes. `end_mono_ns` is valid only together with
    `start_mono_ns` of the same boot. `suspended_ns` is the total so far and not part of the elapsed time. The queue
    wait counts from `eligible_utc_ns` or, if that is unknown, from `submit_utc_ns`.
    """

    key: JobKey
    source: Source = Source.NODE
    qos: OptionalName = ""
    name: str = ""
    admission: OptionalName = ""
    array_job_id: Whole | None = None
    array_task_id: Whole | None = None
    het_job_id: Whole | None = None
    het_offset: Whole | None = None
    device_count: Whole = 1
    state: OptionalName = ""
    exit_code: int | None = None
    submit_utc_ns: Whole | None = None
    eligible_utc_ns: Whole | None = None
    start_utc_ns: Whole | None = None
    start_mono_ns: Whole | None = None
    end_utc_ns: Whole | None = None
    end_mono_ns: Whole | None = None
    suspended_ns: Whole = 0


class SuspensionRecord(_Record, frozen=True, kw_only=True, gc=False):
    """A time during which a job was suspended; sent when it is over. `JobRecord.suspended_ns` has the total."""

    key: JobKey
    start_utc_ns: Whole
    span_ns: Whole


class AdmissionReason(_Struct, frozen=True, kw_only=True, gc=False):
    """One shortfall of an admission; see core.types.Shortfall. `unit` is the unit of `needed` and `free`."""

    what: Name
    needed: Whole = 0
    free: Whole = 0
    unit: OptionalName = "bytes"
    advice: str = ""


class AdmissionRecord(_SubmitBase, frozen=True, kw_only=True, gc=False):
    """One admission decision. `admission` is the id in admin_comment (`adm=`): the job has no id at that time."""

    admission: Name
    cluster: Name
    decided_utc_ns: Whole
    decision: Decision
    basis: Basis
    device_model: OptionalName = ""
    profile_version: Whole | None = None
    persistent_bytes: Whole = 0
    ephemeral_bytes: Whole = 0
    charge_bytes: Whole = 0
    charge_shards: Whole = 0
    reasons: tuple[AdmissionReason, ...] = ()
    job: JobKey | None = None


class SessionRecord(_UseBase, frozen=True, kw_only=True, gc=False):
    """One process of a job on one device, from hello to bye. `session` is never reused on its node."""

    session: Whole
    end_utc_ns: Whole | None = None
    end_mono_ns: Whole | None = None
    is_gated: bool = True
    end_reason: OptionalName = ""


class LaneSpanRecord(_SessionBase, frozen=True, kw_only=True, gc=False):
    """A session's stay in one lane. Sent when the session leaves the lane and when the interval is closed."""

    session: Whole
    lane: Whole
    lane_bytes: Whole
    span_ns: Whole
    iteration_count: Whole = 0


class UsageRecord(_UseBase, frozen=True, kw_only=True, gc=False):
    """One job's use of one device in one interval, from accounting.meter. Written once, never changed.

    `occupied_ns` >= `busy_ns`. `present_ns` = `running_ns` + `wait_ns` + `suspended_ns` + `outside_ns`.
    Memory over time is in MiB-milliseconds: a month in byte-nanoseconds does not fit into 64 bits.
    """

    span_ns: Whole
    present_ns: Whole
    running_ns: Whole
    wait_ns: Whole
    suspended_ns: Whole
    outside_ns: Whole
    busy_ns: Whole
    occupied_ns: Whole
    entitled_ns: Whole
    peak_mib_ms: Whole = 0
    held_mib_ms: Whole = 0


class DeviceUsageRecord(_DaemonBase, frozen=True, kw_only=True, gc=False):
    """The use of one device by all jobs in one interval. Bytes are means over the interval."""

    device: Name
    start_utc_ns: Whole
    start_mono_ns: Whole
    span_ns: Whole
    present_ns: Whole
    busy_ns: Whole
    job_count_max: Whole = 0
    capacity_bytes: Whole = 0
    persistent_bytes_mean: Whole = 0
    lane_bytes_mean: Whole = 0
    foreign_bytes_mean: Whole = 0


class MeasurementRecord(_Record, frozen=True, kw_only=True, gc=False):
    """What one run measured for its signature on a device model: maxima so far, sent again when they grow.

    `solo_iteration_ns` is the median of iterations that ran alone on the device; None if none did.
    `stale_reason` is set if the model or the input differs from that of the stored profile.
    """

    job: JobKey
    user: Name
    signature: Name
    device_model: Name
    measured_utc_ns: Whole
    persistent_bytes: Whole
    ephemeral_bytes: Whole
    live_persistent_bytes: Whole = 0
    live_ephemeral_bytes: Whole = 0
    solo_iteration_ns: Whole | None = None
    iteration_count: Whole = 0
    boundary_rule: OptionalName = ""
    model_hash: OptionalName = ""
    input_hash: OptionalName = ""
    stale_reason: OptionalName = ""


class NodeEventRecord(_DaemonBase, frozen=True, kw_only=True, gc=False, tag="EventRecord"):
    """An event of a device, a job or the daemon. `sequence` numbers the events of an incarnation."""

    sequence: Whole
    kind: EventKind
    happened_utc_ns: Whole
    happened_mono_ns: Whole
    device: OptionalName = ""
    job: JobKey | None = None
    code: int | None = None
    amount_bytes: Whole | None = None
    detail: str = ""


Record = (
    IncarnationRecord
    | DeviceRecord
    | AccountRecord
    | JobRecord
    | SuspensionRecord
    | AdmissionRecord
    | SessionRecord
    | LaneSpanRecord
    | UsageRecord
    | DeviceUsageRecord
    | MeasurementRecord
    | NodeEventRecord
)

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


@lru_cache(maxsize=4096)
def clean_text(text: str, length_max: int = NAME_LENGTH_MAX) -> str:
    """`text` in a form that every database can store: no NUL, no lone surrogate, no longer than the column."""
    if text.isascii() and len(text) <= length_max and "\x00" not in text:
        return text
    return text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\ufffd")[:length_max]


def encode(record: Record) -> bytes:
    """The record in the spool's format, which is self-describing: a newer Salus can read an older spool."""
    return _ENCODER.encode(record)


def decode(payload: bytes) -> Record:
    """The record that `encode` wrote; PeerError if the bytes are not a record."""
    try:
        return _DECODER.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PeerError(f"cannot read a record in the spool: {error}; the record is skipped and counted") from error


def importance(record: Record) -> int:
    """How important a record is: a full spool drops the lowest first and never drops 3.

    0: samples. 1: details. 2: starts and events. 3: what held, busy and charge are computed from.
    """
    match record:
        case DeviceUsageRecord() | LaneSpanRecord():
            return 0
        case AccountRecord() | DeviceRecord() | IncarnationRecord() | MeasurementRecord():
            return 1
        case JobRecord() | SessionRecord():
            return 2 if record.end_utc_ns is None else 3
        case NodeEventRecord():
            return 2
        case AdmissionRecord() | SuspensionRecord() | UsageRecord():
            return 3
