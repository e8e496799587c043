"""The tables. Only this package sees them; callers get records and report values.

Bytes and nanoseconds are 64-bit integers. A column name ends in `_utc_ns` (calendar time) or `_mono_ns` (monotonic
time, valid within one boot); no column mixes the two. Every table has a unique natural key, so a replayed record finds
its own row. Databases get their schema from migrations/; a test checks that it matches these definitions.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

from nodedaemon.core.types import SECOND_NS

METADATA = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# No interval of usage is longer, rolled-up ones included. This bounds the search for rows that cross an edge.
INTERVAL_SPAN_MAX_NS = 86_400 * SECOND_NS


def text(length: int) -> TypeEngine[str]:
    """Text compared byte by byte. With MariaDB's default collation, Ada equals ada and "x " equals "x"."""
    return sa.String(length).with_variant(mysql.VARCHAR(length, collation="utf8mb4_nopad_bin"), "mysql", "mariadb")


# SQLite numbers rows itself only if the type is INTEGER.
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TYPES: dict[str, TypeEngine[Any]] = {
    "id": _ID,
    "big": sa.BigInteger(),
    "int": sa.Integer(),
    "small": sa.SmallInteger(),
    "bool": sa.Boolean(),
}


def _column(name: str, kind: str, *, is_key: bool) -> sa.Column[Any]:
    plain = kind.removesuffix("?")
    column_type = text(int(plain[4:] or 128)) if plain.startswith("text") else _TYPES[plain]
    target = [sa.ForeignKey(f"{name.removesuffix('_id')}s.id")] if plain == "id" and name != "id" else []
    return sa.Column(name, column_type, *target, primary_key=is_key, nullable=kind != plain)


def _table(
    name: str, columns: str, *, key: str = "id", unique: str = "", indexes: tuple[str, ...] = (), **options: Any
) -> sa.Table:
    """Columns are `name:type`, with `?` for those that may be null. A column `x_id:id` refers to the table `xs`."""
    definitions = (column.split(":") for column in columns.split())
    return sa.Table(
        name,
        METADATA,
        *(_column(column, kind, is_key=column in key.split()) for column, kind in definitions),
        *([sa.UniqueConstraint(*unique.split())] if unique else []),
        *(sa.Index(None, *index.split()) for index in indexes),
        **options,
    )


CLUSTERS = _table("clusters", "id:id name:text", unique="name")

NODES = _table("nodes", "id:id cluster_id:id name:text", unique="cluster_id name")

# One run of a daemon. `stopped_utc_ns` stays empty if the daemon was killed.
INCARNATIONS = _table(
    "incarnations",
    "id:id node_id:id name:text boot_id:text version:text started_utc_ns:big? started_mono_ns:big? stopped_utc_ns:big?",
    unique="name",
    indexes=("node_id",),
)

DEVICES = _table(
    "devices",
    "id:id node_id:id uuid:text model:text position:int capacity_bytes:big lane_reserve_bytes:big seen_utc_ns:big",
    unique="node_id uuid",
)

# A Slurm account and its parent account, as they were when Slurm's associations were last read.
ACCOUNTS = _table("accounts", "id:id cluster_id:id name:text parent:text seen_utc_ns:big", unique="cluster_id name")

# One run of a job. `elapsed_ns` excludes suspended time; `until_utc_ns` = start + elapsed + suspended.
JOBS = _table(
    "jobs",
    "id:id cluster_id:id slurm_job_id:big restart_count:int device_count:int source:small sluid:text user:text "
    "account:text partition:text qos:text signature:text admission:text state:text name:text1024 exit_code:int? "
    "uid:big? array_job_id:big? array_task_id:big? het_job_id:big? het_offset:big? submit_utc_ns:big? "
    "eligible_utc_ns:big? start_utc_ns:big? start_mono_ns:big? end_utc_ns:big? end_mono_ns:big? until_utc_ns:big? "
    "elapsed_ns:big? wait_ns:big? suspended_ns:big",
    unique="cluster_id slurm_job_id restart_count sluid",
    # The first index covers the query for the distribution of waits, which then never reads the rows themselves.
    indexes=(
        "start_utc_ns until_utc_ns wait_ns",
        "user start_utc_ns",
        "account start_utc_ns",
        "signature",
        "admission",
    ),
)

SUSPENSIONS = _table("suspensions", "job_id:id start_utc_ns:big span_ns:big", key="job_id start_utc_ns")

ADMISSIONS = _table(
    "admissions",
    "id:id cluster_id:id name:text user:text account:text partition:text signature:text device_model:text "
    "decision:text16 basis:text16 uid:big? profile_version:int? decided_utc_ns:big persistent_bytes:big "
    "ephemeral_bytes:big charge_bytes:big charge_shards:big",
    unique="cluster_id name",
    indexes=("decided_utc_ns", "user decided_utc_ns"),
)

# Every reason of an admission, in the order in which the admission stated them.
REASONS = _table(
    "admission_reasons",
    "admission_id:id position:int what:text needed:big free:big unit:text32 advice:text1024",
    key="admission_id position",
)

SESSIONS = _table(
    "sessions",
    "id:id job_id:id device_id:id incarnation_id:id number:big start_utc_ns:big start_mono_ns:big end_utc_ns:big? "
    "end_mono_ns:big? is_gated:bool end_reason:text iteration_count:big handover_count:big "
    "persistent_bytes_max:big ephemeral_bytes_max:big",
    unique="device_id number start_utc_ns",
    indexes=("job_id", "start_utc_ns"),
)

LANE_SPANS = _table(
    "lane_spans",
    "device_id:id incarnation_id:id session_number:big start_mono_ns:big job_id:id lane_number:big lane_bytes:big "
    "start_utc_ns:big span_ns:big iteration_count:big",
    key="device_id incarnation_id session_number start_mono_ns",
    indexes=("start_utc_ns", "job_id"),
)

# A job on a device in one interval. After the roll-up, one interval per day, incarnation, job and device.
USAGE = _table(
    "usage",
    "job_id:id device_id:id incarnation_id:id start_mono_ns:big start_utc_ns:big span_ns:big present_ns:big "
    "running_ns:big wait_ns:big suspended_ns:big outside_ns:big busy_ns:big occupied_ns:big entitled_ns:big "
    "iteration_count:big handover_count:big persistent_bytes_max:big ephemeral_bytes_max:big peak_mib_ms:big "
    "held_mib_ms:big",
    key="job_id device_id incarnation_id start_mono_ns",
    indexes=("start_utc_ns",),
    sqlite_with_rowid=False,
)

DEVICE_USAGE = _table(
    "device_usage",
    "device_id:id incarnation_id:id start_mono_ns:big start_utc_ns:big span_ns:big present_ns:big busy_ns:big "
    "job_count_max:int capacity_bytes:big persistent_bytes_mean:big lane_bytes_mean:big foreign_bytes_mean:big",
    key="device_id incarnation_id start_mono_ns",
    indexes=("start_utc_ns",),
    sqlite_with_rowid=False,
)

# What admission uses for a user's signature on a device model. Every change is a row of profile_versions.
PROFILES = _table(
    "profiles",
    "id:id cluster_id:id user:text64 signature:text device_model:text boundary_rule:text model_hash:text "
    "input_hash:text stale_reason:text version:int run_count:int persistent_bytes:big ephemeral_bytes:big "
    "measured_persistent_bytes:big measured_ephemeral_bytes:big live_persistent_bytes:big "
    "live_ephemeral_bytes:big forgotten_utc_ns:big seen_utc_ns:big changed_utc_ns:big solo_iteration_ns:big? "
    "is_forgotten:bool",
    unique="cluster_id user signature device_model",
)

# One change to a profile: its values from then on, who changed it, and why.
VERSIONS = _table(
    "profile_versions",
    "profile_id:id version:int persistent_bytes:big ephemeral_bytes:big changed_utc_ns:big solo_iteration_ns:big? "
    "changed_by:text cause:text16 detail:text1024",
    key="profile_id version",
    indexes=("changed_utc_ns",),
)

# The runs behind a profile. A run that reports again updates its row and counts once.
RUNS = _table(
    "profile_runs",
    "profile_id:id job_id:id measured_utc_ns:big persistent_bytes:big ephemeral_bytes:big iteration_count:big "
    "solo_iteration_ns:big?",
    key="profile_id job_id",
)

EVENTS = _table(
    "events",
    "incarnation_id:id sequence:big kind:text32 happened_utc_ns:big happened_mono_ns:big device_id:id? job_id:id? "
    "code:big? amount_bytes:big? detail:text1024",
    key="incarnation_id sequence",
    indexes=("happened_utc_ns", "job_id"),
)

# Up to when usage has been rolled up or purged. Older records that arrive later are dropped and counted.
WATERMARKS = _table("watermarks", "name:text32 before_utc_ns:big", key="name")
