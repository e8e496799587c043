"""The values that reports, charts and job pages consist of. Callers get these, never rows."""

import msgspec

from accounting.profiles import ProfileChange, ProfileView
from accounting.reports.measures import Measures
from accounting.reports.selection import ReportKind


class JobRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a report and a job's page show about a job run. `job` is the id as sacct prints it."""

    cluster: str = ""
    account: str = ""
    user: str = ""
    job: str = ""
    name: str = ""
    partition: str = ""
    qos: str = ""
    state: str = ""
    signature: str = ""
    submit_utc_ns: int | None = None
    start_utc_ns: int | None = None
    end_utc_ns: int | None = None
    measures: Measures = Measures()


class ReportRow(JobRun, frozen=True, kw_only=True):
    """One line of a report: names and measures. Names that do not apply are empty.

    `depth` is 0 for a group and 1 for its members (users of an account, sessions of a job). In an account tree it is
    the level, and a line without a user is an account with everything below it.
    """

    depth: int = 0
    node: str = ""
    device: str = ""
    device_model: str = ""
    restart_count: int | None = None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The footer of a report. Jobs refused or delayed for lack of memory count as avoided out-of-memory errors."""

    refused_count: int = 0
    made_to_wait_count: int = 0
    wait_median_ns: int | None = None
    wait_p95_ns: int | None = None
    profile_change_count: int = 0
    device_count: int = 0
    event_counts: dict[str, int] = {}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A report. `until_utc_ns` is the end of the window or now, whichever is earlier."""

    kind: ReportKind
    start_utc_ns: int
    end_utc_ns: int
    until_utc_ns: int
    clusters: list[str]
    rows: list[ReportRow]
    total: Measures
    summary: Summary


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the time axis; the last one ends at the end of the window."""

    start_utc_ns: int
    span_ns: int


class Bin(Step, frozen=True, kw_only=True):
    """Device time of all devices during one step."""

    held_ns: int = 0
    measures: Measures = Measures()


class MemoryBin(Step, frozen=True, kw_only=True):
    """Mean bytes on one device during one step."""

    node: str
    device: str
    persistent_bytes: int
    ephemeral_bytes: int
    free_bytes: int


class LaneSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A job's stay in a lane. `user` and `job` are empty if the viewer may not see them."""

    node: str
    device: str
    lane: int
    job: str
    user: str
    start_utc_ns: int
    end_utc_ns: int
    lane_bytes: int
    iteration_count: int


class EventPart(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a job run."""

    happened_utc_ns: int
    kind: str
    detail: str


class EventMark(EventPart, frozen=True, kw_only=True):
    """An event on the time axis of a device, or of its node if no device is named."""

    node: str
    device: str
    job: str


class LongWait(msgspec.Struct, frozen=True, kw_only=True):
    """One of the longest waits in the queue, with the reasons that admission stated."""

    job: str
    restart_count: int
    user: str
    account: str
    wait_ns: int
    start_utc_ns: int
    reasons: list[str]


class ReportCharts(msgspec.Struct, frozen=True, kw_only=True):
    """The values of all charts of one report. `spans` holds the longest of `span_count` stays."""

    bin_ns: int
    bins: list[Bin]
    memory: list[MemoryBin]
    spans: list[LaneSpan]
    span_count: int
    marks: list[EventMark]
    waits: list[LongWait]
    changes: list[ProfileChange]


class DevicePart(msgspec.Struct, frozen=True, kw_only=True):
    """A device that a run used, and the most memory that it used there."""

    node: str
    device: str
    device_model: str
    capacity_bytes: int
    persistent_bytes_max: int
    ephemeral_bytes_max: int


class AdmissionPart(msgspec.Struct, frozen=True, kw_only=True):
    """The admission decision of a job."""

    decision: str
    basis: str
    decided_utc_ns: int
    persistent_bytes: int
    ephemeral_bytes: int
    charge_bytes: int
    charge_shards: int
    reasons: list[str]


class JobPage(JobRun, frozen=True, kw_only=True):
    """One run of a job."""

    job_id: int
    restart_count: int
    device_count: int
    wait_ns: int | None
    session_count: int
    devices: list[DevicePart]
    admission: AdmissionPart | None
    profile: ProfileView | None
    events: list[EventPart]
