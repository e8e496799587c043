"""Create the schema of the first release.

A migration defines tables and columns itself and never imports accounting.storage.tables, which changes over time.
"""

from typing import NamedTuple

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


class Table(NamedTuple):
    """Columns are `name:type`, with `?` for those that may be null; a column `x_id:id` refers to the table `xs`."""

    name: str
    columns: str
    key: str = "id"
    unique: str = ""
    indexes: tuple[str, ...] = ()
    #: Stored in the order of the key, without SQLite's own row number.
    is_keyed: bool = False


# A table comes after those that it refers to.
TABLES = (
    Table("clusters", "id:id name:text", unique="name"),
    Table("nodes", "id:id cluster_id:id name:text", unique="cluster_id name"),
    Table(
        "incarnations",
        "id:id node_id:id name:text boot_id:text version:text started_utc_ns:big? started_mono_ns:big? "
        "stopped_utc_ns:big?",
        unique="name",
        indexes=("node_id",),
    ),
    Table(
        "devices",
        "id:id node_id:id uuid:text position:int model:text capacity_bytes:big lane_reserve_bytes:big seen_utc_ns:big",
        unique="node_id uuid",
    ),
    Table(
        "jobs",
        "id:id cluster_id:id slurm_job_id:big restart_count:int sluid:text source:small user:text uid:big? "
        "account:text partition:text qos:text name:text1024 signature:text admission:text array_job_id:big? "
        "array_task_id:big? het_job_id:big? het_offset:big? device_count:int state:text exit_code:int? "
        "submit_utc_ns:big? eligible_utc_ns:big? start_utc_ns:big? start_mono_ns:big? end_utc_ns:big? "
        "end_mono_ns:big? until_utc_ns:big? elapsed_ns:big? suspended_ns:big wait_ns:big?",
        unique="cluster_id slurm_job_id restart_count sluid",
        indexes=(
            "account start_utc_ns",
            "admission",
            "signature",
            "start_utc_ns until_utc_ns wait_ns",
            "user start_utc_ns",
        ),
    ),
    Table("suspensions", "job_id:id start_utc_ns:big span_ns:big", key="job_id start_utc_ns"),
    Table(
        "admissions",
        "id:id cluster_id:id name:text decided_utc_ns:big decision:text16 basis:text16 user:text uid:big? "
        "account:text partition:text signature:text device_model:text profile_version:int? "
        "persistent_bytes:big ephemeral_bytes:big charge_bytes:big charge_shards:big",
        unique="cluster_id name",
        indexes=("decided_utc_ns", "user decided_utc_ns"),
    ),
    Table(
        "admission_reasons",
        "admission_id:id position:int what:text needed:big free:big unit:text32 advice:text1024",
        key="admission_id position",
    ),
    Table(
        "sessions",
        "id:id job_id:id device_id:id incarnation_id:id number:big start_utc_ns:big start_mono_ns:big "
        "end_utc_ns:big? end_mono_ns:big? is_gated:bool end_reason:text iteration_count:big "
        "handover_count:big persistent_bytes_max:big ephemeral_bytes_max:big",
        unique="device_id number start_utc_ns",
        indexes=("job_id", "start_utc_ns"),
    ),
    Table(
        "lane_spans",
        "device_id:id incarnation_id:id session_number:big start_mono_ns:big job_id:id lane_number:big "
        "lane_bytes:big start_utc_ns:big span_ns:big iteration_count:big",
        key="device_id incarnation_id session_number start_mono_ns",
        indexes=("job_id", "start_utc_ns"),
    ),
    Table(
        "usage",
        "job_id:id device_id:id incarnation_id:id start_mono_ns:big start_utc_ns:big span_ns:big "
        "present_ns:big running_ns:big wait_ns:big suspended_ns:big outside_ns:big busy_ns:big "
        "occupied_ns:big entitled_ns:big iteration_count:big handover_count:big persistent_bytes_max:big "
        "ephemeral_bytes_max:big peak_mib_ms:big held_mib_ms:big",
        key="job_id device_id incarnation_id start_mono_ns",
        indexes=("start_utc_ns",),
        is_keyed=True,
    ),
    Table(
        "device_usage",
        "device_id:id incarnation_id:id start_mono_ns:big start_utc_ns:big span_ns:big present_ns:big "
        "busy_ns:big job_count_max:int capacity_bytes:big persistent_bytes_mean:big lane_bytes_mean:big "
        "foreign_bytes_mean:big",
        key="device_id incarnation_id start_mono_ns",
        indexes=("start_utc_ns",),
        is_keyed=True,
    ),
    Table(
        "profiles",
        "id:id cluster_id:id user:text64 signature:text device_model:text version:int persistent_bytes:big "
        "ephemeral_bytes:big measured_persistent_bytes:big measured_ephemeral_bytes:big "
        "live_persistent_bytes:big live_ephemeral_bytes:big solo_iteration_ns:big? boundary_rule:text "
        "model_hash:text input_hash:text run_count:int stale_reason:text is_forgotten:bool "
        "forgotten_utc_ns:big seen_utc_ns:big changed_utc_ns:big",
        unique="cluster_id user signature device_model",
    ),
    Table(
        "profile_versions",
        "profile_id:id version:int persistent_bytes:big ephemeral_bytes:big solo_iteration_ns:big? "
        "changed_utc_ns:big changed_by:text cause:text16 detail:text1024",
        key="profile_id version",
        indexes=("changed_utc_ns",),
    ),
    Table(
        "profile_runs",
        "profile_id:id job_id:id measured_utc_ns:big persistent_bytes:big ephemeral_bytes:big "
        "solo_iteration_ns:big? iteration_count:big",
        key="profile_id job_id",
    ),
    Table(
        "events",
        "incarnation_id:id sequence:big kind:text32 happened_utc_ns:big happened_mono_ns:big device_id:id? "
        "job_id:id? code:big? amount_bytes:big? detail:text1024",
        key="incarnation_id sequence",
        indexes=("happened_utc_ns", "job_id"),
    ),
    Table("watermarks", "name:text32 before_utc_ns:big", key="name"),
)

TYPES: dict[str, sa.types.TypeEngine[object]] = {
    # SQLite numbers rows by itself only if the type is INTEGER.
    "id": sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
    "big": sa.BigInteger(),
    "int": sa.Integer(),
    "small": sa.SmallInteger(),
    "bool": sa.Boolean(),
}


def upgrade() -> None:
    for table in TABLES:
        columns = [_column(*text.split(":")) for text in table.columns.split()]
        references = sorted(text.partition(":")[0] for text in table.columns.split() if "_id:id" in text)
        op.create_table(
            table.name,
            *columns,
            sa.PrimaryKeyConstraint(*table.key.split(), name=op.f(f"pk_{table.name}")),
            *_unique(table),
            *(_reference(table.name, column) for column in references),
            **({"sqlite_with_rowid": False} if table.is_keyed else {}),
        )
        for index in table.indexes:
            op.create_index(op.f(f"ix_{table.name}_{index.replace(' ', '_')}"), table.name, index.split())


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table.name)


def _column(name: str, kind: str) -> sa.Column[object]:
    plain = kind.rstrip("?")
    column_type = _text_type(int(plain[4:] or 128)) if plain.startswith("text") else TYPES[plain]
    return sa.Column(name, column_type, nullable=kind.endswith("?"))


def _text_type(length: int) -> sa.types.TypeEngine[object]:
    # Compared byte by byte: MariaDB's default would treat Ada as ada, and "x " as "x".
    binary = mysql.VARCHAR(length, collation="utf8mb4_nopad_bin")
    return sa.String(length).with_variant(binary, "mysql", "mariadb")


def _unique(table: Table) -> list[sa.UniqueConstraint]:
    columns = table.unique.split()
    return [sa.UniqueConstraint(*columns, name=op.f(f"uq_{table.name}_{'_'.join(columns)}"))] if columns else []


def _reference(table: str, column: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [f"{column.removesuffix('_id')}s.id"], name=op.f(f"fk_{table}_{column}"))
