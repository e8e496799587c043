"""The schema version: which one a database has, which one this Salus needs, and migration between versions.

Migrations are in migrations/ of a checkout and in accounting/_migrations of an installed wheel. Only the functions that
migrate import Alembic; daemons call `require`, which reads one row.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, select, table
from sqlalchemy.sql import column

from accounting.storage.database import Database
from nodedaemon.core.errors import OperatingError

if TYPE_CHECKING:
    from alembic.config import Config

_VERSION_FILE = re.compile(r"(\d{4})_\w+\.py")


@dataclass(frozen=True)
class SchemaState:
    """`current` is None in a database without our tables; `differences` lists where tables and code differ."""

    current: str | None
    head: str
    differences: tuple[str, ...] = ()

    @property
    def is_newer(self) -> bool:
        """Whether a later Salus created the schema. Revisions are numbered, so they can be compared."""
        return self.current is not None and self.current > self.head


def migrations_directory() -> Path:
    package = Path(__file__).resolve().parent.parent
    for directory in (package / "_migrations", package.parent / "migrations"):
        if (directory / "env.py").is_file():
            return directory
    raise OperatingError(f"migrations not found: {package}: the installation is incomplete; reinstall salus")


def head() -> str:
    """The newest revision that this Salus knows."""
    found = (_VERSION_FILE.fullmatch(path.name) for path in (migrations_directory() / "versions").iterdir())
    return max(match.group(1) for match in found if match)


def current(database: Database) -> str | None:
    """The revision of the database; None if it has no schema yet."""
    with database.reading() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        version = table("alembic_version", column("version_num"))
        return connection.execute(select(version.c.version_num)).scalar()


def require(database: Database) -> None:
    """Raise OperatingError unless the database has exactly the schema of this Salus. Daemons call this at start."""
    state = SchemaState(current(database), head())
    if state.current == state.head:
        return
    if state.is_newer:
        raise OperatingError(
            f"database refused: {database.address}: its schema {state.current} is newer than {state.head}, the newest "
            "that this Salus supports; upgrade Salus on this host"
        )
    raise OperatingError(
        f"database refused: {database.address}: its schema is {state.current or 'empty'}, this Salus needs "
        f"{state.head}; run salus-acct db upgrade"
    )


def upgrade(database: Database, revision: str = "head", *, on_step: Callable[[str], None] | None = None) -> None:
    """Migrate to `revision`, and refuse a newer database. `on_step` is called with each migration that was applied."""
    if SchemaState(current(database), head()).is_newer:
        require(database)
    from alembic import command

    _run(database, lambda config: command.upgrade(config, revision), on_step)


def downgrade(database: Database, revision: str) -> None:
    """Migrate back to `revision` ("base" for an empty schema). Only the tests of the migrations use this."""
    from alembic import command

    _run(database, lambda config: command.downgrade(config, revision), None)


def check(database: Database) -> SchemaState:
    """The state of the schema, with every difference between the database and the tables in the code."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from accounting.storage.tables import METADATA

    version = current(database)
    with database.reading() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        differences = tuple(_flatten(compare_metadata(context, METADATA)))
    return SchemaState(version, head(), differences)


def _run(database: Database, action: Callable[["Config"], None], on_step: Callable[[str], None] | None) -> None:
    from alembic.config import Config

    def work(connection: Connection) -> None:
        config = Config()
        config.set_main_option("script_location", str(migrations_directory()).replace("%", "%%"))
        config.set_main_option("path_separator", "os")
        config.attributes["connection"] = connection
        config.attributes["on_step"] = on_step
        action(config)

    database.write(work)


def _flatten(differences: list[object]) -> Iterator[str]:
    for difference in differences:
        if isinstance(difference, list):
            yield from _flatten(difference)
        else:
            yield " ".join(map(str, difference)) if isinstance(difference, tuple) else repr(difference)
