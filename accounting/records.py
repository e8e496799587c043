"""What daemons hand over to accounting: one value a fact, keyed by nature, so that a replayed record changes nothing.

A record states the whole of what its sender knows, never a difference: a session's end record repeats its start. UTC
and monotonic time stand apart; lengths come from the monotonic clock, places in the calendar from UTC. `encode` and
`decode` are the spool's format. Nothing here imports SQLAlchemy. The words are those of docs/accounting.md.
"""

from enum import IntEnum
from functools import lru_cache
from typing import Annotated, Literal

import msgspec

from nodedaemon.core.errors import PeerError

NAME_LENGTH_MAX = 128
DETAIL_LENGTH_MAX = 1024

# The largest that a signed 64-bit column holds; counts and times beyond it are garbage from a peer.
Whole = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_LENGTH_MAX)]
OptionalName = Annotated[str, msgspec.Meta(max_length=NAME_LENGTH_MAX)]

Decision = Literal["admit", "defer", "refuse"]
# By what an admission was decided: a measured profile, the user's declaration, or the rule for unknown jobs.
Basis = Literal["profile", "declared", "exclusive", "requeue", "none"]
EventKind = Literal[
    "overrun",
    "xid",
    "device_lost",
    "device_recovered",
    "foreign_memory",
    "claim_waited",
    "hung",
    "ended_by_salus",
    "ungated",
    "clock_stepped",
    "spool_dropped",
    "profile_stale",
]


# No record can be part of a cycle; left to the collector, a full spool in memory costs a third of the ledger's time.
class _Value(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    pass


class JobKey(_Value, frozen=True, kw_only=True, gc=False, order=True, cache_hash=True):
    """One run of a job. A requeue raises `restart_count`. `sluid` is Slurm's own unique id (26.05 on), else empty.

    Without Slurm, `cluster` is "local@NODE" and the daemon numbers the jobs.
    """

    cluster: Name
    job_id: Whole
    restart_count: Whole = 0
    sluid: OptionalName = ""


class Source(IntEnum):
    """Who says when a job ran; the higher one wins, because held time must agree with sacct."""

    NODE = 1
    SLURM = 2


class _Record(_Value, frozen=True, kw_only=True, gc=False, tag=True):
    pass


class IncarnationRecord(_Record, frozen=True, kw_only=True, gc=False):
    """One life of a daemon, from start to end. `incarnation` is unique for ever (a random UUID)."""

    cluster: Name
    node: Name
    incarnation: Name
    boot_id: OptionalName = ""
    version: OptionalName = ""
    started_utc_ns: Whole
    started_mono_ns: Whole
    stopped_utc_ns: Whole | None = None


class DeviceRecord(_Record, frozen=True, kw_only=True, gc=False):
    """A device as the daemon found it; repeated at each start and whenever it changes."""

    cluster: Name
    node: Name
    device: Name
    index: Whole = 0
    model: Name
    capacity_bytes: Whole
    lane_reserve_bytes: Whole = 0
    seen_utc_ns: Whole


class AccountRecord(_Record, frozen=True, kw_only=True, gc=False):
    """An account of Slurm's and the one above it (empty: none), as its associations have them."""

    cluster: Name
    account: Name
    parent: OptionalName = ""
    seen_utc_ns: Whole


class JobRecord(_Record, frozen=True, kw_only=True, gc=False):
    """A job's run. Unknown fields stay empty or None and never erase what is known.

    `device_count` is the job's gres/salus count over all nodes. `end_mono_ns` counts only together with
    `start_mono_ns` of the same boot. `suspended_ns` is the total so far and no part of the elapsed time. `wait` counts
    from `eligible_utc_ns`, or from `submit_utc_ns` where that is unknown.
    """

    key: JobKey
    source: Source = Source.NODE
    user: OptionalName = ""
    uid: Whole | None = None
    account: OptionalName = ""
    partition: OptionalName = ""
    qos: OptionalName = ""
    name: str = ""
    signature: OptionalName = ""
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
    """A span in which a job was suspended; recorded once it is over. `JobRecord.suspended_ns` has the total."""

    key: JobKey
    start_utc_ns: Whole
    span_ns: Whole


class Reason(_Value, frozen=True, kw_only=True, gc=False):
    """One shortfall of an admission, as core.types.Shortfall says it. `unit` tells what `needed` and `free` count."""

    what: Name
    needed: Whole = 0
    free: Whole = 0
    unit: OptionalName = "bytes"
    advice: str = ""


class AdmissionRecord(_Record, frozen=True, kw_only=True, gc=False):
    """One answer at submit. `admission` is the id that admin_comment carries as `adm=`; Slurm has no job id yet."""

    admission: Name
    cluster: Name
    decided_utc_ns: Whole
    decision: Decision
    basis: Basis
    user: OptionalName = ""
    uid: Whole | None = None
    account: OptionalName = ""
    partition: OptionalName = ""
    signature: OptionalName = ""
    device_model: OptionalName = ""
    profile_version: Whole | None = None
    persistent_bytes: Whole = 0
    ephemeral_bytes: Whole = 0
    charge_bytes: Whole = 0
    charge_shards: Whole = 0
    reasons: tuple[Reason, ...] = ()
    job: JobKey | None = None


class SessionRecord(_Record, frozen=True, kw_only=True, gc=False):
    """One process of a job on one device, from hello to bye. `session` is never reused on its node."""

    job: JobKey
    node: Name
    device: Name
    session: Whole
    incarnation: Name
    start_utc_ns: Whole
    start_mono_ns: Whole
    end_utc_ns: Whole | None = None
    end_mono_ns: Whole | None = None
    is_gated: bool = True
    end_reason: OptionalName = ""
    iteration_count: Whole = 0
    handover_count: Whole = 0
    persistent_bytes_max: Whole = 0
    ephemeral_bytes_max: Whole = 0


class LaneSpanRecord(_Record, frozen=True, kw_only=True, gc=False):
    """A session's stay in one lane; recorded when it leaves the lane, moves, or the interval is closed."""

    job: JobKey
    node: Name
    device: Name
    incarnation: Name
    session: Whole
    lane: Whole
    lane_bytes: Whole
    start_utc_ns: Whole
    start_mono_ns: Whole
    span_ns: Whole
    iteration_count: Whole = 0


class UsageRecord(_Record, frozen=True, kw_only=True, gc=False):
    """What one job had of one device in one interval: written once, never changed. Made by accounting.meter.

    `occupied_ns` >= `busy_ns`. `present_ns` = `running_ns` + `wait_ns` + `suspended_ns` + `outside_ns`.
    Memory over time is in MiB-milliseconds: byte-nanoseconds of a month do not fit 64 bits.
    """

    job: JobKey
    node: Name
    device: Name
    incarnation: Name
    start_utc_ns: Whole
    start_mono_ns: Whole
    span_ns: Whole
    present_ns: Whole
    running_ns: Whole
    wait_ns: Whole
    suspended_ns: Whole
    outside_ns: Whole
    busy_ns: Whole
    occupied_ns: Whole
    entitled_ns: Whole
    iteration_count: Whole
    handover_count: Whole = 0
    persistent_bytes_max: Whole = 0
    ephemeral_bytes_max: Whole = 0
    peak_mib_ms: Whole = 0
    held_mib_ms: Whole = 0


class DeviceUsageRecord(_Record, frozen=True, kw_only=True, gc=False):
    """One device in one interval, all jobs together. Bytes are means over the interval."""

    cluster: Name
    node: Name
    device: Name
    incarnation: Name
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
    """What one run taught about its signature on a device model: running maxima, repeated as they grow.

    `solo_iteration_ns` is the median of iterations that ran while no other ran on the device; None if none did.
    `stale_reason` is set when model or input differ from those of the stored profile.
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


class EventRecord(_Record, frozen=True, kw_only=True, gc=False):
    """Something that happened to a device, a job or the daemon. `sequence` numbers the events of an incarnation."""

    cluster: Name
    node: Name
    incarnation: Name
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
    | EventRecord
)

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


@lru_cache(maxsize=4096)
def clean_text(text: str, length_max: int = NAME_LENGTH_MAX) -> str:
    """Any text as every database can hold it: no NUL, no half of a surrogate pair, not longer than the column."""
    if text.isascii() and len(text) <= length_max and "\x00" not in text:
        return text
    return text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\ufffd")[:length_max]


def encode(record: Record) -> bytes:
    """The record as the spool keeps it: self-describing, so that a newer reader understands an older spool."""
    return _ENCODER.encode(record)


def decode(payload: bytes) -> Record:
    """The record that `encode` wrote; PeerError if the bytes are anything else."""
    try:
        return _DECODER.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PeerError(f"record not read: spool: {error}; it is left out and counted") from error


def worth(record: Record) -> int:
    """How much is lost if this record is dropped; a full spool drops the lowest first, and 3 never.

    0 samples, 1 detail, 2 starts and events, 3 what held, busy and charge rest on.
    """
    match record:
        case DeviceUsageRecord() | LaneSpanRecord():
            return 0
        case AccountRecord() | DeviceRecord() | IncarnationRecord() | MeasurementRecord():
            return 1
        case JobRecord() | SessionRecord():
            return 2 if record.end_utc_ns is None else 3
        case EventRecord():
            return 2
        case AdmissionRecord() | SuspensionRecord() | UsageRecord():
            return 3
