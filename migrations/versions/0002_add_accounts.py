"""Add the account tree of Slurm."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    name = sa.String(128).with_variant(mysql.VARCHAR(128, collation="utf8mb4_nopad_bin"), "mysql", "mariadb")
    op.create_table(
        "accounts",
        sa.Column("id", _ID, nullable=False),
        sa.Column("cluster_id", _ID, nullable=False),
        sa.Column("name", name, nullable=False),
        sa.Column("parent", name, nullable=False),
        sa.Column("seen_utc_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_accounts")),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.id"], name=op.f("fk_accounts_cluster_id")),
        sa.UniqueConstraint("cluster_id", "name", name=op.f("uq_accounts_cluster_id_name")),
    )


def downgrade() -> None:
    op.drop_table("accounts")
