"""The tables, as SQLAlchemy mappings. Only this package sees them; callers get records and report values.

Bytes and nanoseconds are 64-bit integers. A column ends in `_utc_ns` (calendar) or `_mono_ns` (monotonic, meaningful
within one boot); no column mixes them. Each table has a unique natural key, so that a replay finds its own row. The
schema in a database is made by migrations/, never from here; a test holds the two together.
"""

from sqlalchemy import BigInteger, Boolean, ForeignKey, Index, Integer, MetaData, SmallInteger, String, UniqueConstraint
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeEngine

NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}

# SQLite numbers rows by itself only where the type is INTEGER.
Id: TypeEngine[int] = BigInteger().with_variant(Integer, "sqlite")


def text(length: int) -> TypeEngine[str]:
    """Text compared byte by byte. MariaDB's default would take Ada for ada, and "x " for "x"."""
    return String(length).with_variant(mysql.VARCHAR(length, collation="utf8mb4_nopad_bin"), "mysql", "mariadb")


NAME = text(128)
DETAIL = text(1024)


class Base(DeclarativeBase):
    """Parent of the mappings; its metadata is compared with the head of the migrations."""

    metadata = MetaData(naming_convention=NAMES)
    type_annotation_map = {int: BigInteger, str: NAME, bool: Boolean}  # noqa: RUF012 - declared so by SQLAlchemy


class ClusterRow(Base):
    __tablename__ = "clusters"
    __table_args__ = (UniqueConstraint("name"),)
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    name: Mapped[str]


class NodeRow(Base):
    __tablename__ = "nodes"
    __table_args__ = (UniqueConstraint("cluster_id", "name"),)
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    cluster_id: Mapped[int] = mapped_column(ForeignKey("clusters.id"))
    name: Mapped[str]


class IncarnationRow(Base):
    """One life of a daemon; `stopped_utc_ns` stays empty where it was killed."""

    __tablename__ = "incarnations"
    __table_args__ = (UniqueConstraint("name"), Index(None, "node_id"))
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    node_id: Mapped[int] = mapped_column(ForeignKey("nodes.id"))
    name: Mapped[str]
    boot_id: Mapped[str] = mapped_column(default="")
    version: Mapped[str] = mapped_column(default="")
    started_utc_ns: Mapped[int | None]
    started_mono_ns: Mapped[int | None]
    stopped_utc_ns: Mapped[int | None]


class DeviceRow(Base):
    __tablename__ = "devices"
    __table_args__ = (UniqueConstraint("node_id", "uuid"),)
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    node_id: Mapped[int] = mapped_column(ForeignKey("nodes.id"))
    uuid: Mapped[str]
    position: Mapped[int] = mapped_column(Integer, default=0)
    model: Mapped[str] = mapped_column(default="")
    capacity_bytes: Mapped[int] = mapped_column(default=0)
    lane_reserve_bytes: Mapped[int] = mapped_column(default=0)
    seen_utc_ns: Mapped[int] = mapped_column(default=0)


class AccountRow(Base):
    """An account and the one above it, as Slurm's associations had them when they were last read."""

    __tablename__ = "accounts"
    __table_args__ = (UniqueConstraint("cluster_id", "name"),)
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    cluster_id: Mapped[int] = mapped_column(ForeignKey("clusters.id"))
    name: Mapped[str]
    parent: Mapped[str] = mapped_column(default="")
    seen_utc_ns: Mapped[int] = mapped_column(default=0)


class JobRow(Base):
    """One run of a job. `elapsed_ns` is without suspended time; `until_utc_ns` = start + elapsed + suspended."""

    __tablename__ = "jobs"
    __table_args__ = (
        UniqueConstraint("cluster_id", "slurm_job_id", "restart_count", "sluid"),
        # Holds all that the distribution of waits asks for, so that a month's needs no look at the rows.
        Index(None, "start_utc_ns", "until_utc_ns", "wait_ns"),
        Index(None, "user", "start_utc_ns"),
        Index(None, "account", "start_utc_ns"),
        Index(None, "signature"),
        Index(None, "admission"),
    )
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    cluster_id: Mapped[int] = mapped_column(ForeignKey("clusters.id"))
    slurm_job_id: Mapped[int]
    restart_count: Mapped[int] = mapped_column(Integer)
    sluid: Mapped[str] = mapped_column(default="")
    source: Mapped[int] = mapped_column(SmallInteger)
    user: Mapped[str] = mapped_column(default="")
    uid: Mapped[int | None]
    account: Mapped[str] = mapped_column(default="")
    partition: Mapped[str] = mapped_column(default="")
    qos: Mapped[str] = mapped_column(default="")
    name: Mapped[str] = mapped_column(DETAIL, default="")
    signature: Mapped[str] = mapped_column(default="")
    admission: Mapped[str] = mapped_column(default="")
    array_job_id: Mapped[int | None]
    array_task_id: Mapped[int | None]
    het_job_id: Mapped[int | None]
    het_offset: Mapped[int | None]
    device_count: Mapped[int] = mapped_column(Integer, default=1)
    state: Mapped[str] = mapped_column(default="")
    exit_code: Mapped[int | None] = mapped_column(Integer)
    submit_utc_ns: Mapped[int | None]
    eligible_utc_ns: Mapped[int | None]
    start_utc_ns: Mapped[int | None]
    start_mono_ns: Mapped[int | None]
    end_utc_ns: Mapped[int | None]
    end_mono_ns: Mapped[int | None]
    until_utc_ns: Mapped[int | None]
    elapsed_ns: Mapped[int | None]
    suspended_ns: Mapped[int] = mapped_column(default=0)
    wait_ns: Mapped[int | None]


class SuspensionRow(Base):
    __tablename__ = "suspensions"
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    start_utc_ns: Mapped[int] = mapped_column(primary_key=True)
    span_ns: Mapped[int]


class AdmissionRow(Base):
    __tablename__ = "admissions"
    __table_args__ = (
        UniqueConstraint("cluster_id", "name"),
        Index(None, "decided_utc_ns"),
        Index(None, "user", "decided_utc_ns"),
    )
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    cluster_id: Mapped[int] = mapped_column(ForeignKey("clusters.id"))
    name: Mapped[str]
    decided_utc_ns: Mapped[int]
    decision: Mapped[str] = mapped_column(text(16))
    basis: Mapped[str] = mapped_column(text(16))
    user: Mapped[str]
    uid: Mapped[int | None]
    account: Mapped[str]
    partition: Mapped[str]
    signature: Mapped[str]
    device_model: Mapped[str]
    profile_version: Mapped[int | None] = mapped_column(Integer)
    persistent_bytes: Mapped[int]
    ephemeral_bytes: Mapped[int]
    charge_bytes: Mapped[int]
    charge_shards: Mapped[int]


class AdmissionReasonRow(Base):
    """Every reason of an admission, in the order in which it was given."""

    __tablename__ = "admission_reasons"
    admission_id: Mapped[int] = mapped_column(ForeignKey("admissions.id"), primary_key=True)
    position: Mapped[int] = mapped_column(Integer, primary_key=True)
    what: Mapped[str]
    needed: Mapped[int]
    free: Mapped[int]
    unit: Mapped[str] = mapped_column(text(32))
    advice: Mapped[str] = mapped_column(DETAIL)


class SessionRow(Base):
    __tablename__ = "sessions"
    __table_args__ = (
        UniqueConstraint("device_id", "number", "start_utc_ns"),
        Index(None, "job_id"),
        Index(None, "start_utc_ns"),
    )
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"))
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"))
    incarnation_id: Mapped[int] = mapped_column(ForeignKey("incarnations.id"))
    number: Mapped[int]
    start_utc_ns: Mapped[int]
    start_mono_ns: Mapped[int]
    end_utc_ns: Mapped[int | None]
    end_mono_ns: Mapped[int | None]
    is_gated: Mapped[bool]
    end_reason: Mapped[str] = mapped_column(default="")
    iteration_count: Mapped[int] = mapped_column(default=0)
    handover_count: Mapped[int] = mapped_column(default=0)
    persistent_bytes_max: Mapped[int] = mapped_column(default=0)
    ephemeral_bytes_max: Mapped[int] = mapped_column(default=0)


class LaneSpanRow(Base):
    __tablename__ = "lane_spans"
    __table_args__ = (Index(None, "start_utc_ns"), Index(None, "job_id"))
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"), primary_key=True)
    incarnation_id: Mapped[int] = mapped_column(ForeignKey("incarnations.id"), primary_key=True)
    session_number: Mapped[int] = mapped_column(primary_key=True)
    start_mono_ns: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"))
    lane_number: Mapped[int]
    lane_bytes: Mapped[int]
    start_utc_ns: Mapped[int]
    span_ns: Mapped[int]
    iteration_count: Mapped[int]


class UsageRow(Base):
    """A job on a device in one interval. Rows older than the roll-up keep one interval a day, incarnation and pair."""

    __tablename__ = "usage"
    __table_args__ = (Index(None, "start_utc_ns"), {"sqlite_with_rowid": False})
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"), primary_key=True)
    incarnation_id: Mapped[int] = mapped_column(ForeignKey("incarnations.id"), primary_key=True)
    start_mono_ns: Mapped[int] = mapped_column(primary_key=True)
    start_utc_ns: Mapped[int]
    span_ns: Mapped[int]
    present_ns: Mapped[int]
    running_ns: Mapped[int]
    wait_ns: Mapped[int]
    suspended_ns: Mapped[int]
    outside_ns: Mapped[int]
    busy_ns: Mapped[int]
    occupied_ns: Mapped[int]
    entitled_ns: Mapped[int]
    iteration_count: Mapped[int]
    handover_count: Mapped[int]
    persistent_bytes_max: Mapped[int]
    ephemeral_bytes_max: Mapped[int]
    peak_mib_ms: Mapped[int]
    held_mib_ms: Mapped[int]


class DeviceUsageRow(Base):
    __tablename__ = "device_usage"
    __table_args__ = (Index(None, "start_utc_ns"), {"sqlite_with_rowid": False})
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"), primary_key=True)
    incarnation_id: Mapped[int] = mapped_column(ForeignKey("incarnations.id"), primary_key=True)
    start_mono_ns: Mapped[int] = mapped_column(primary_key=True)
    start_utc_ns: Mapped[int]
    span_ns: Mapped[int]
    present_ns: Mapped[int]
    busy_ns: Mapped[int]
    job_count_max: Mapped[int] = mapped_column(Integer)
    capacity_bytes: Mapped[int]
    persistent_bytes_mean: Mapped[int]
    lane_bytes_mean: Mapped[int]
    foreign_bytes_mean: Mapped[int]


class ProfileRow(Base):
    """What admission uses for a user's signature on a device model; every change is a row of profile_versions."""

    __tablename__ = "profiles"
    __table_args__ = (UniqueConstraint("cluster_id", "user", "signature", "device_model"),)
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    cluster_id: Mapped[int] = mapped_column(ForeignKey("clusters.id"))
    user: Mapped[str] = mapped_column(text(64))
    signature: Mapped[str]
    device_model: Mapped[str]
    version: Mapped[int] = mapped_column(Integer)
    persistent_bytes: Mapped[int]
    ephemeral_bytes: Mapped[int]
    measured_persistent_bytes: Mapped[int]
    measured_ephemeral_bytes: Mapped[int]
    live_persistent_bytes: Mapped[int]
    live_ephemeral_bytes: Mapped[int]
    solo_iteration_ns: Mapped[int | None]
    boundary_rule: Mapped[str]
    model_hash: Mapped[str]
    input_hash: Mapped[str]
    run_count: Mapped[int] = mapped_column(Integer)
    stale_reason: Mapped[str]
    is_forgotten: Mapped[bool]
    forgotten_utc_ns: Mapped[int]
    seen_utc_ns: Mapped[int]
    changed_utc_ns: Mapped[int]


class ProfileVersionRow(Base):
    """One change of a profile: the values from then on, who made it and why."""

    __tablename__ = "profile_versions"
    __table_args__ = (Index(None, "changed_utc_ns"),)
    profile_id: Mapped[int] = mapped_column(ForeignKey("profiles.id"), primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True)
    persistent_bytes: Mapped[int]
    ephemeral_bytes: Mapped[int]
    solo_iteration_ns: Mapped[int | None]
    changed_utc_ns: Mapped[int]
    changed_by: Mapped[str]
    cause: Mapped[str] = mapped_column(text(16))
    detail: Mapped[str] = mapped_column(DETAIL)


class ProfileRunRow(Base):
    """Which runs taught a profile: a run that reports again raises its own row and is counted once."""

    __tablename__ = "profile_runs"
    profile_id: Mapped[int] = mapped_column(ForeignKey("profiles.id"), primary_key=True)
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    measured_utc_ns: Mapped[int]
    persistent_bytes: Mapped[int]
    ephemeral_bytes: Mapped[int]
    solo_iteration_ns: Mapped[int | None]
    iteration_count: Mapped[int]


class EventRow(Base):
    __tablename__ = "events"
    __table_args__ = (Index(None, "happened_utc_ns"), Index(None, "job_id"))
    incarnation_id: Mapped[int] = mapped_column(ForeignKey("incarnations.id"), primary_key=True)
    sequence: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(text(32))
    happened_utc_ns: Mapped[int]
    happened_mono_ns: Mapped[int]
    device_id: Mapped[int | None] = mapped_column(ForeignKey("devices.id"))
    job_id: Mapped[int | None] = mapped_column(ForeignKey("jobs.id"))
    code: Mapped[int | None]
    amount_bytes: Mapped[int | None]
    detail: Mapped[str] = mapped_column(DETAIL)


class WatermarkRow(Base):
    """Up to when usage has been rolled up or purged; older records that arrive later are left out and counted."""

    __tablename__ = "watermarks"
    name: Mapped[str] = mapped_column(text(32), primary_key=True)
    before_utc_ns: Mapped[int]
