"""Entry point of Alembic: runs migrations in the transaction of accounting.storage.schema.

There is no alembic.ini and no address here. accounting.storage.schema is the only caller and passes the connection.
"""

from typing import Any

from alembic import context


def _announce(step: Any, **_ignored: object) -> None:
    on_step = context.config.attributes.get("on_step")
    if on_step is not None:
        on_step(str(step.up_revision_id if step.is_upgrade else step.down_revision_ids))


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=context.config.attributes.get("metadata"),
    compare_type=True,
    on_version_apply=_announce,
)
with context.begin_transaction():
    context.run_migrations()
