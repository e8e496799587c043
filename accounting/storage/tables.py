"""The tables. Only this package sees them; callers get records and report values.

Bytes and nanoseconds are 64-bit integers. A column name ends in `_utc_ns` (calendar time) or `_mono_ns` (monotonic
time, valid within one boot); no column mixes the two. Every table has a unique natural key, so a replayed record finds
its own row. Databases get their schema from migrations/; a test checks that it matches these definitions.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
)
from sqlalchemy import UniqueConstraint as Unique
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# No interval of usage is longer, rolled-up ones included. This bounds the search for rows that cross an edge.
INTERVAL_SPAN_MAX_NS = 86_400 * 1_000_000_000


def text(length: int) -> TypeEngine[str]:
    """Text compared byte by byte. With MariaDB's default collation, Ada equals ada and "x " equals "x"."""
    return String(length).with_variant(mysql.VARCHAR(length, collation="utf8mb4_nopad_bin"), "mysql", "mariadb")


NAME, DETAIL = text(128), text(1024)


def _id() -> Column[Any]:
    # SQLite numbers rows itself only if the type is INTEGER.
    return Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True)


def _refers(name: str, *, is_key: bool = False, is_optional: bool = False) -> Column[Any]:
    """A reference named after its table: job_id refers to jobs.id."""
    target = ForeignKey(f"{name.removesuffix('_id')}s.id")
    return Column(name, target, primary_key=is_key, nullable=is_optional)


def _key(name: str, kind: TypeEngine[Any]) -> Column[Any]:
    return Column(name, kind, primary_key=True)


def _columns(kind: TypeEngine[Any], names: str, *, is_optional: bool = False) -> list[Column[Any]]:
    return [Column(name, kind, nullable=is_optional) for name in names.split()]


def _table(name: str, *parts: Any, **options: Any) -> Table:
    return Table(name, METADATA, *parts, **options)


_WHOLE, _SMALL = BigInteger(), Integer()

CLUSTERS = _table("clusters", _id(), *_columns(NAME, "name"), Unique("name"))

NODES = _table("nodes", _id(), _refers("cluster_id"), *_columns(NAME, "name"), Unique("cluster_id", "name"))

# One lifetime of a daemon. `stopped_utc_ns` stays empty if the daemon was killed.
INCARNATIONS = _table(
    "incarnations",
    _id(),
    _refers("node_id"),
    *_columns(NAME, "name boot_id version"),
    *_columns(_WHOLE, "started_utc_ns started_mono_ns stopped_utc_ns", is_optional=True),
    Unique("name"),
    Index(None, "node_id"),
)

DEVICES = _table(
    "devices",
    _id(),
    _refers("node_id"),
    *_columns(NAME, "uuid model"),
    *_columns(_SMALL, "position"),
    *_columns(_WHOLE, "capacity_bytes lane_reserve_bytes seen_utc_ns"),
    Unique("node_id", "uuid"),
)

# A Slurm account and its parent account, as they were when Slurm's associations were last read.
ACCOUNTS = _table(
    "accounts",
    _id(),
    _refers("cluster_id"),
    *_columns(NAME, "name parent"),
    *_columns(_WHOLE, "seen_utc_ns"),
    Unique("cluster_id", "name"),
)

# One run of a job. `elapsed_ns` excludes suspended time; `until_utc_ns` = start + elapsed + suspended.
JOBS = _table(
    "jobs",
    _id(),
    _refers("cluster_id"),
    *_columns(_WHOLE, "slurm_job_id"),
    *_columns(_SMALL, "restart_count device_count"),
    *_columns(SmallInteger(), "source"),
    *_columns(NAME, "sluid user account partition qos signature admission state"),
    *_columns(DETAIL, "name"),
    *_columns(_SMALL, "exit_code", is_optional=True),
    *_columns(_WHOLE, "uid array_job_id array_task_id het_job_id het_offset submit_utc_ns", is_optional=True),
    *_columns(_WHOLE, "eligible_utc_ns start_utc_ns start_mono_ns end_utc_ns end_mono_ns", is_optional=True),
    *_columns(_WHOLE, "until_utc_ns elapsed_ns wait_ns", is_optional=True),
    *_columns(_WHOLE, "suspended_ns"),
    Unique("cluster_id", "slurm_job_id", "restart_count", "sluid"),
    # Covers the query for the distribution of waits, so it never reads the rows themselves.
    Index(None, "start_utc_ns", "until_utc_ns", "wait_ns"),
    Index(None, "user", "start_utc_ns"),
    Index(None, "account", "start_utc_ns"),
    Index(None, "signature"),
    Index(None, "admission"),
)

SUSPENSIONS = _table(
    "suspensions",
    _refers("job_id", is_key=True),
    _key("start_utc_ns", _WHOLE),
    *_columns(_WHOLE, "span_ns"),
)

ADMISSIONS = _table(
    "admissions",
    _id(),
    _refers("cluster_id"),
    *_columns(NAME, "name user account partition signature device_model"),
    *_columns(text(16), "decision basis"),
    *_columns(_WHOLE, "uid", is_optional=True),
    *_columns(_SMALL, "profile_version", is_optional=True),
    *_columns(_WHOLE, "decided_utc_ns persistent_bytes ephemeral_bytes charge_bytes charge_shards"),
    Unique("cluster_id", "name"),
    Index(None, "decided_utc_ns"),
    Index(None, "user", "decided_utc_ns"),
)

# Every reason of an admission, in the order in which the admission stated them.
REASONS = _table(
    "admission_reasons",
    _refers("admission_id", is_key=True),
    _key("position", _SMALL),
    *_columns(NAME, "what"),
    *_columns(_WHOLE, "needed free"),
    *_columns(text(32), "unit"),
    *_columns(DETAIL, "advice"),
)

SESSIONS = _table(
    "sessions",
    _id(),
    _refers("job_id"),
    _refers("device_id"),
    _refers("incarnation_id"),
    *_columns(_WHOLE, "number start_utc_ns start_mono_ns"),
    *_columns(_WHOLE, "end_utc_ns end_mono_ns", is_optional=True),
    *_columns(Boolean(), "is_gated"),
    *_columns(NAME, "end_reason"),
    *_columns(_WHOLE, "iteration_count handover_count persistent_bytes_max ephemeral_bytes_max"),
    Unique("device_id", "number", "start_utc_ns"),
    Index(None, "job_id"),
    Index(None, "start_utc_ns"),
)

LANE_SPANS = _table(
    "lane_spans",
    _refers("device_id", is_key=True),
    _refers("incarnation_id", is_key=True),
    _key("session_number", _WHOLE),
    _key("start_mono_ns", _WHOLE),
    _refers("job_id"),
    *_columns(_WHOLE, "lane_number lane_bytes start_utc_ns span_ns iteration_count"),
    Index(None, "start_utc_ns"),
    Index(None, "job_id"),
)

# A job on a device in one interval. After the roll-up, one interval per day, incarnation, job and device.
USAGE = _table(
    "usage",
    _refers("job_id", is_key=True),
    _refers("device_id", is_key=True),
    _refers("incarnation_id", is_key=True),
    _key("start_mono_ns", _WHOLE),
    *_columns(_WHOLE, "start_utc_ns span_ns present_ns running_ns wait_ns suspended_ns outside_ns busy_ns occupied_ns"),
    *_columns(_WHOLE, "entitled_ns iteration_count handover_count persistent_bytes_max ephemeral_bytes_max"),
    *_columns(_WHOLE, "peak_mib_ms held_mib_ms"),
    Index(None, "start_utc_ns"),
    sqlite_with_rowid=False,
)

DEVICE_USAGE = _table(
    "device_usage",
    _refers("device_id", is_key=True),
    _refers("incarnation_id", is_key=True),
    _key("start_mono_ns", _WHOLE),
    *_columns(_WHOLE, "start_utc_ns span_ns present_ns busy_ns"),
    *_columns(_SMALL, "job_count_max"),
    *_columns(_WHOLE, "capacity_bytes persistent_bytes_mean lane_bytes_mean foreign_bytes_mean"),
    Index(None, "start_utc_ns"),
    sqlite_with_rowid=False,
)

# What admission uses for a user's signature on a device model. Every change is a row of profile_versions.
PROFILES = _table(
    "profiles",
    _id(),
    _refers("cluster_id"),
    *_columns(text(64), "user"),
    *_columns(NAME, "signature device_model boundary_rule model_hash input_hash stale_reason"),
    *_columns(_SMALL, "version run_count"),
    *_columns(_WHOLE, "persistent_bytes ephemeral_bytes measured_persistent_bytes measured_ephemeral_bytes"),
    *_columns(_WHOLE, "live_persistent_bytes live_ephemeral_bytes forgotten_utc_ns seen_utc_ns changed_utc_ns"),
    *_columns(_WHOLE, "solo_iteration_ns", is_optional=True),
    *_columns(Boolean(), "is_forgotten"),
    Unique("cluster_id", "user", "signature", "device_model"),
)

# One change of a profile: its values from then on, who changed it, and why.
VERSIONS = _table(
    "profile_versions",
    _refers("profile_id", is_key=True),
    _key("version", _SMALL),
    *_columns(_WHOLE, "persistent_bytes ephemeral_bytes changed_utc_ns"),
    *_columns(_WHOLE, "solo_iteration_ns", is_optional=True),
    *_columns(NAME, "changed_by"),
    *_columns(text(16), "cause"),
    *_columns(DETAIL, "detail"),
    Index(None, "changed_utc_ns"),
)

# The runs behind a profile. A run that reports again updates its row and counts once.
RUNS = _table(
    "profile_runs",
    _refers("profile_id", is_key=True),
    _refers("job_id", is_key=True),
    *_columns(_WHOLE, "measured_utc_ns persistent_bytes ephemeral_bytes iteration_count"),
    *_columns(_WHOLE, "solo_iteration_ns", is_optional=True),
)

EVENTS = _table(
    "events",
    _refers("incarnation_id", is_key=True),
    _key("sequence", _WHOLE),
    *_columns(text(32), "kind"),
    *_columns(_WHOLE, "happened_utc_ns happened_mono_ns"),
    _refers("device_id", is_optional=True),
    _refers("job_id", is_optional=True),
    *_columns(_WHOLE, "code amount_bytes", is_optional=True),
    *_columns(DETAIL, "detail"),
    Index(None, "happened_utc_ns"),
    Index(None, "job_id"),
)

# Up to when usage has been rolled up or purged. Older records that arrive later are dropped and counted.
WATERMARKS = _table("watermarks", _key("name", text(32)), *_columns(_WHOLE, "before_utc_ns"))
