"""What salusd answers on its control socket, as values: made by the service, read by the commands.

One JSON object a line; docs/protocol.md, "Commands and salusd". Bytes and nanoseconds are integers in base units. Of
jobs that the asker may not see, `job`, `user` and `name` are empty and only their load is told.
"""

from __future__ import annotations

import msgspec

REQUEST_BYTES_MAX = 64 * 1024
ANSWER_BYTES_MAX = 16 * 1024 * 1024


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


class LaneStatus(msgspec.Struct, kw_only=True):
    lane: int
    device: str
    state: str
    size_bytes: int
    held_bytes: int | None
    holder: int | None
    sessions: list[int]
    domain: str


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
    """One reason why a session does not run now. `needed` and `free` are in `unit`."""

    what: str
    needed: int | None = None
    free: int | None = None
    unit: str = ""
    advice: str = ""


class WhatIf(msgspec.Struct, kw_only=True):
    """Something that would change it, tried on a copy of the engine."""

    change: str
    is_served: bool
    boundary_count: int | None = None


class SessionWhy(msgspec.Struct, kw_only=True):
    session: int
    device: str
    state: str
    reasons: list[Reason]
    changes: list[WhatIf]


class WhyAnswer(msgspec.Struct, kw_only=True):
    ok: bool = True
    job: str
    user: str
    sessions: list[SessionWhy]


class Failure(msgspec.Struct, kw_only=True):
    """`kind`: usage, not_found, not_permitted or failed."""

    ok: bool = False
    why: str
    kind: str = "failed"
