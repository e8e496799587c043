"""Create the schema of the first release.

A migration names tables and columns itself and never imports the models, which move on.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = (
    "clusters",
    "nodes",
    "incarnations",
    "devices",
    "jobs",
    "suspensions",
    "admissions",
    "admission_reasons",
    "sessions",
    "lane_spans",
    "usage",
    "device_usage",
    "profiles",
    "profile_versions",
    "profile_runs",
    "events",
    "watermarks",
)

# SQLite numbers rows by itself only where the type is INTEGER.
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _create_places()
    _create_jobs()
    _create_admissions()
    _create_sessions()
    _create_usage()
    _create_profiles()
    _create_profile_history()
    _create_events()


def downgrade() -> None:
    # Those that refer to others go first.
    for name in reversed(TABLES):
        op.drop_table(name)


def _id_column(name: str) -> sa.Column[int]:
    return sa.Column(name, _ID, nullable=False)


def _text_column(name: str, length: int) -> sa.Column[str]:
    # Compared byte by byte: MariaDB's default would take Ada for ada, and "x " for "x".
    binary = mysql.VARCHAR(length, collation="utf8mb4_nopad_bin")
    return sa.Column(name, sa.String(length).with_variant(binary, "mysql", "mariadb"), nullable=False)


def _reference(table: str, column: str, to: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [f"{to}.id"], name=op.f(f"fk_{table}_{column}"))


def _create_index(table: str, *columns: str) -> None:
    op.create_index(op.f(f"ix_{table}_{'_'.join(columns)}"), table, list(columns))


def _create_places() -> None:
    op.create_table(
        "clusters",
        _id_column("id"),
        _text_column("name", 128),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_clusters")),
        sa.UniqueConstraint("name", name=op.f("uq_clusters_name")),
    )
    op.create_table(
        "nodes",
        _id_column("id"),
        _id_column("cluster_id"),
        _text_column("name", 128),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_nodes")),
        sa.UniqueConstraint("cluster_id", "name", name=op.f("uq_nodes_cluster_id_name")),
        _reference("nodes", "cluster_id", "clusters"),
    )
    op.create_table(
        "incarnations",
        _id_column("id"),
        _id_column("node_id"),
        _text_column("name", 128),
        _text_column("boot_id", 128),
        _text_column("version", 128),
        sa.Column("started_utc_ns", sa.BigInteger(), nullable=True),
        sa.Column("started_mono_ns", sa.BigInteger(), nullable=True),
        sa.Column("stopped_utc_ns", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_incarnations")),
        sa.UniqueConstraint("name", name=op.f("uq_incarnations_name")),
        _reference("incarnations", "node_id", "nodes"),
    )
    _create_index("incarnations", "node_id")
    op.create_table(
        "devices",
        _id_column("id"),
        _id_column("node_id"),
        _text_column("uuid", 128),
        sa.Column("position", sa.Integer(), nullable=False),
        _text_column("model", 128),
        sa.Column("capacity_bytes", sa.BigInteger(), nullable=False),
        sa.Column("lane_reserve_bytes", sa.BigInteger(), nullable=False),
        sa.Column("seen_utc_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_devices")),
        sa.UniqueConstraint("node_id", "uuid", name=op.f("uq_devices_node_id_uuid")),
        _reference("devices", "node_id", "nodes"),
    )


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        _id_column("id"),
        _id_column("cluster_id"),
        sa.Column("slurm_job_id", sa.BigInteger(), nullable=False),
        sa.Column("restart_count", sa.Integer(), nullable=False),
        _text_column("sluid", 128),
        sa.Column("source", sa.SmallInteger(), nullable=False),
        _text_column("user", 128),
        sa.Column("uid", sa.BigInteger(), nullable=True),
        _text_column("account", 128),
        _text_column("partition", 128),
        _text_column("qos", 128),
        _text_column("name", 1024),
        _text_column("signature", 128),
        _text_column("admission", 128),
        sa.Column("array_job_id", sa.BigInteger(), nullable=True),
        sa.Column("array_task_id", sa.BigInteger(), nullable=True),
        sa.Column("het_job_id", sa.BigInteger(), nullable=True),
        sa.Column("het_offset", sa.BigInteger(), nullable=True),
        sa.Column("device_count", sa.Integer(), nullable=False),
        _text_column("state", 128),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("submit_utc_ns", sa.BigInteger(), nullable=True),
        sa.Column("eligible_utc_ns", sa.BigInteger(), nullable=True),
        sa.Column("start_utc_ns", sa.BigInteger(), nullable=True),
        sa.Column("start_mono_ns", sa.BigInteger(), nullable=True),
        sa.Column("end_utc_ns", sa.BigInteger(), nullable=True),
        sa.Column("end_mono_ns", sa.BigInteger(), nullable=True),
        sa.Column("until_utc_ns", sa.BigInteger(), nullable=True),
        sa.Column("elapsed_ns", sa.BigInteger(), nullable=True),
        sa.Column("suspended_ns", sa.BigInteger(), nullable=False),
        sa.Column("wait_ns", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint(
            "cluster_id",
            "slurm_job_id",
            "restart_count",
            "sluid",
            name=op.f("uq_jobs_cluster_id_slurm_job_id_restart_count_sluid"),
        ),
        _reference("jobs", "cluster_id", "clusters"),
    )
    _create_index("jobs", "account", "start_utc_ns")
    _create_index("jobs", "admission")
    _create_index("jobs", "signature")
    _create_index("jobs", "start_utc_ns", "until_utc_ns", "wait_ns")
    _create_index("jobs", "user", "start_utc_ns")
    op.create_table(
        "suspensions",
        _id_column("job_id"),
        sa.Column("start_utc_ns", sa.BigInteger(), nullable=False),
        sa.Column("span_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "start_utc_ns", name=op.f("pk_suspensions")),
        _reference("suspensions", "job_id", "jobs"),
    )


def _create_admissions() -> None:
    op.create_table(
        "admissions",
        _id_column("id"),
        _id_column("cluster_id"),
        _text_column("name", 128),
        sa.Column("decided_utc_ns", sa.BigInteger(), nullable=False),
        _text_column("decision", 16),
        _text_column("basis", 16),
        _text_column("user", 128),
        sa.Column("uid", sa.BigInteger(), nullable=True),
        _text_column("account", 128),
        _text_column("partition", 128),
        _text_column("signature", 128),
        _text_column("device_model", 128),
        sa.Column("profile_version", sa.Integer(), nullable=True),
        sa.Column("persistent_bytes", sa.BigInteger(), nullable=False),
        sa.Column("ephemeral_bytes", sa.BigInteger(), nullable=False),
        sa.Column("charge_bytes", sa.BigInteger(), nullable=False),
        sa.Column("charge_shards", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_admissions")),
        sa.UniqueConstraint("cluster_id", "name", name=op.f("uq_admissions_cluster_id_name")),
        _reference("admissions", "cluster_id", "clusters"),
    )
    _create_index("admissions", "decided_utc_ns")
    _create_index("admissions", "user", "decided_utc_ns")
    op.create_table(
        "admission_reasons",
        _id_column("admission_id"),
        sa.Column("position", sa.Integer(), nullable=False),
        _text_column("what", 128),
        sa.Column("needed", sa.BigInteger(), nullable=False),
        sa.Column("free", sa.BigInteger(), nullable=False),
        _text_column("unit", 32),
        _text_column("advice", 1024),
        sa.PrimaryKeyConstraint("admission_id", "position", name=op.f("pk_admission_reasons")),
        _reference("admission_reasons", "admission_id", "admissions"),
    )


def _create_sessions() -> None:
    op.create_table(
        "sessions",
        _id_column("id"),
        _id_column("job_id"),
        _id_column("device_id"),
        _id_column("incarnation_id"),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("start_utc_ns", sa.BigInteger(), nullable=False),
        sa.Column("start_mono_ns", sa.BigInteger(), nullable=False),
        sa.Column("end_utc_ns", sa.BigInteger(), nullable=True),
        sa.Column("end_mono_ns", sa.BigInteger(), nullable=True),
        sa.Column("is_gated", sa.Boolean(), nullable=False),
        _text_column("end_reason", 128),
        sa.Column("iteration_count", sa.BigInteger(), nullable=False),
        sa.Column("handover_count", sa.BigInteger(), nullable=False),
        sa.Column("persistent_bytes_max", sa.BigInteger(), nullable=False),
        sa.Column("ephemeral_bytes_max", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
        sa.UniqueConstraint(
            "device_id", "number", "start_utc_ns", name=op.f("uq_sessions_device_id_number_start_utc_ns")
        ),
        _reference("sessions", "device_id", "devices"),
        _reference("sessions", "incarnation_id", "incarnations"),
        _reference("sessions", "job_id", "jobs"),
    )
    _create_index("sessions", "job_id")
    _create_index("sessions", "start_utc_ns")
    op.create_table(
        "lane_spans",
        _id_column("device_id"),
        _id_column("incarnation_id"),
        sa.Column("session_number", sa.BigInteger(), nullable=False),
        sa.Column("start_mono_ns", sa.BigInteger(), nullable=False),
        _id_column("job_id"),
        sa.Column("lane_number", sa.BigInteger(), nullable=False),
        sa.Column("lane_bytes", sa.BigInteger(), nullable=False),
        sa.Column("start_utc_ns", sa.BigInteger(), nullable=False),
        sa.Column("span_ns", sa.BigInteger(), nullable=False),
        sa.Column("iteration_count", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "device_id", "incarnation_id", "session_number", "start_mono_ns", name=op.f("pk_lane_spans")
        ),
        _reference("lane_spans", "device_id", "devices"),
        _reference("lane_spans", "incarnation_id", "incarnations"),
        _reference("lane_spans", "job_id", "jobs"),
    )
    _create_index("lane_spans", "job_id")
    _create_index("lane_spans", "start_utc_ns")


def _create_usage() -> None:
    op.create_table(
        "usage",
        _id_column("job_id"),
        _id_column("device_id"),
        _id_column("incarnation_id"),
        sa.Column("start_mono_ns", sa.BigInteger(), nullable=False),
        sa.Column("start_utc_ns", sa.BigInteger(), nullable=False),
        sa.Column("span_ns", sa.BigInteger(), nullable=False),
        sa.Column("present_ns", sa.BigInteger(), nullable=False),
        sa.Column("running_ns", sa.BigInteger(), nullable=False),
        sa.Column("wait_ns", sa.BigInteger(), nullable=False),
        sa.Column("suspended_ns", sa.BigInteger(), nullable=False),
        sa.Column("outside_ns", sa.BigInteger(), nullable=False),
        sa.Column("busy_ns", sa.BigInteger(), nullable=False),
        sa.Column("occupied_ns", sa.BigInteger(), nullable=False),
        sa.Column("entitled_ns", sa.BigInteger(), nullable=False),
        sa.Column("iteration_count", sa.BigInteger(), nullable=False),
        sa.Column("handover_count", sa.BigInteger(), nullable=False),
        sa.Column("persistent_bytes_max", sa.BigInteger(), nullable=False),
        sa.Column("ephemeral_bytes_max", sa.BigInteger(), nullable=False),
        sa.Column("peak_mib_ms", sa.BigInteger(), nullable=False),
        sa.Column("held_mib_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "device_id", "incarnation_id", "start_mono_ns", name=op.f("pk_usage")),
        _reference("usage", "device_id", "devices"),
        _reference("usage", "incarnation_id", "incarnations"),
        _reference("usage", "job_id", "jobs"),
        sqlite_with_rowid=False,
    )
    _create_index("usage", "start_utc_ns")
    op.create_table(
        "device_usage",
        _id_column("device_id"),
        _id_column("incarnation_id"),
        sa.Column("start_mono_ns", sa.BigInteger(), nullable=False),
        sa.Column("start_utc_ns", sa.BigInteger(), nullable=False),
        sa.Column("span_ns", sa.BigInteger(), nullable=False),
        sa.Column("present_ns", sa.BigInteger(), nullable=False),
        sa.Column("busy_ns", sa.BigInteger(), nullable=False),
        sa.Column("job_count_max", sa.Integer(), nullable=False),
        sa.Column("capacity_bytes", sa.BigInteger(), nullable=False),
        sa.Column("persistent_bytes_mean", sa.BigInteger(), nullable=False),
        sa.Column("lane_bytes_mean", sa.BigInteger(), nullable=False),
        sa.Column("foreign_bytes_mean", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("device_id", "incarnation_id", "start_mono_ns", name=op.f("pk_device_usage")),
        _reference("device_usage", "device_id", "devices"),
        _reference("device_usage", "incarnation_id", "incarnations"),
        sqlite_with_rowid=False,
    )
    _create_index("device_usage", "start_utc_ns")


def _create_profiles() -> None:
    op.create_table(
        "profiles",
        _id_column("id"),
        _id_column("cluster_id"),
        _text_column("user", 64),
        _text_column("signature", 128),
        _text_column("device_model", 128),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("persistent_bytes", sa.BigInteger(), nullable=False),
        sa.Column("ephemeral_bytes", sa.BigInteger(), nullable=False),
        sa.Column("measured_persistent_bytes", sa.BigInteger(), nullable=False),
        sa.Column("measured_ephemeral_bytes", sa.BigInteger(), nullable=False),
        sa.Column("live_persistent_bytes", sa.BigInteger(), nullable=False),
        sa.Column("live_ephemeral_bytes", sa.BigInteger(), nullable=False),
        sa.Column("solo_iteration_ns", sa.BigInteger(), nullable=True),
        _text_column("boundary_rule", 128),
        _text_column("model_hash", 128),
        _text_column("input_hash", 128),
        sa.Column("run_count", sa.Integer(), nullable=False),
        _text_column("stale_reason", 128),
        sa.Column("is_forgotten", sa.Boolean(), nullable=False),
        sa.Column("forgotten_utc_ns", sa.BigInteger(), nullable=False),
        sa.Column("seen_utc_ns", sa.BigInteger(), nullable=False),
        sa.Column("changed_utc_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_profiles")),
        sa.UniqueConstraint(
            "cluster_id",
            "user",
            "signature",
            "device_model",
            name=op.f("uq_profiles_cluster_id_user_signature_device_model"),
        ),
        _reference("profiles", "cluster_id", "clusters"),
    )


def _create_profile_history() -> None:
    op.create_table(
        "profile_versions",
        _id_column("profile_id"),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("persistent_bytes", sa.BigInteger(), nullable=False),
        sa.Column("ephemeral_bytes", sa.BigInteger(), nullable=False),
        sa.Column("solo_iteration_ns", sa.BigInteger(), nullable=True),
        sa.Column("changed_utc_ns", sa.BigInteger(), nullable=False),
        _text_column("changed_by", 128),
        _text_column("cause", 16),
        _text_column("detail", 1024),
        sa.PrimaryKeyConstraint("profile_id", "version", name=op.f("pk_profile_versions")),
        _reference("profile_versions", "profile_id", "profiles"),
    )
    _create_index("profile_versions", "changed_utc_ns")
    op.create_table(
        "profile_runs",
        _id_column("profile_id"),
        _id_column("job_id"),
        sa.Column("measured_utc_ns", sa.BigInteger(), nullable=False),
        sa.Column("persistent_bytes", sa.BigInteger(), nullable=False),
        sa.Column("ephemeral_bytes", sa.BigInteger(), nullable=False),
        sa.Column("solo_iteration_ns", sa.BigInteger(), nullable=True),
        sa.Column("iteration_count", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("profile_id", "job_id", name=op.f("pk_profile_runs")),
        _reference("profile_runs", "job_id", "jobs"),
        _reference("profile_runs", "profile_id", "profiles"),
    )


def _create_events() -> None:
    op.create_table(
        "events",
        _id_column("incarnation_id"),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        _text_column("kind", 32),
        sa.Column("happened_utc_ns", sa.BigInteger(), nullable=False),
        sa.Column("happened_mono_ns", sa.BigInteger(), nullable=False),
        sa.Column("device_id", _ID, nullable=True),
        sa.Column("job_id", _ID, nullable=True),
        sa.Column("code", sa.BigInteger(), nullable=True),
        sa.Column("amount_bytes", sa.BigInteger(), nullable=True),
        _text_column("detail", 1024),
        sa.PrimaryKeyConstraint("incarnation_id", "sequence", name=op.f("pk_events")),
        _reference("events", "device_id", "devices"),
        _reference("events", "incarnation_id", "incarnations"),
        _reference("events", "job_id", "jobs"),
    )
    _create_index("events", "happened_utc_ns")
    _create_index("events", "job_id")
    op.create_table(
        "watermarks",
        _text_column("name", 32),
        sa.Column("before_utc_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_watermarks")),
    )
