"""The schema's version: which one a database has, which one this Salus knows, and the way from one to the other.

Migrations lie in migrations/ of a checkout and in accounting/_migrations of an installed wheel. Alembic is imported
here only; a daemon calls `require`, which reads one row and needs no Alembic.
"""

import re
from collections.abc import Callable
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
    """`current` is None in a database without tables of ours; `differences` say where tables and models differ."""

    current: str | None
    head: str
    differences: tuple[str, ...] = ()

    @property
    def is_newer(self) -> bool:
        """Made by a later Salus than this one. Revisions are numbered, so that the comparison needs no history."""
        return self.current is not None and self.current > self.head


def migrations_directory() -> Path:
    """Where the migrations of this Salus are."""
    package = Path(__file__).resolve().parent.parent
    for place in (package / "_migrations", package.parent / "migrations"):
        if (place / "env.py").is_file():
            return place
    raise OperatingError(f"migrations not found: {package}: the installation is incomplete; install salus again")


def head() -> str:
    """The newest revision that this Salus knows."""
    found = (_VERSION_FILE.fullmatch(path.name) for path in (migrations_directory() / "versions").iterdir())
    return max(match.group(1) for match in found if match)


def current(database: Database) -> str | None:
    """The revision of the database; None where Salus has never been."""
    with database.reading() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        version = table("alembic_version", column("version_num"))
        return connection.execute(select(version.c.version_num)).scalar()


def require(database: Database) -> None:
    """Raise OperatingError unless the database has exactly the schema of this Salus: what each daemon does first."""
    state = SchemaState(current(database), head())
    if state.current == state.head:
        return
    if state.is_newer:
        raise OperatingError(
            f"database refused: {database.address}: its schema {state.current} is newer than {state.head}, the newest "
            "that this Salus knows; upgrade Salus on this host"
        )
    raise OperatingError(
        f"database refused: {database.address}: its schema is {state.current or 'empty'}, this Salus needs "
        f"{state.head}; run salus-acct db upgrade"
    )


def upgrade(database: Database, revision: str = "head", *, on_step: Callable[[str], None] | None = None) -> None:
    """Bring the database to `revision`; a newer one is refused untouched. `on_step` hears of each migration done."""
    if SchemaState(current(database), head()).is_newer:
        require(database)
    from alembic import command

    _run(database, lambda config: command.upgrade(config, revision), on_step)


def downgrade(database: Database, revision: str) -> None:
    """Take the database back to `revision` ("base" for none): what the migrations' own tests do."""
    from alembic import command

    _run(database, lambda config: command.downgrade(config, revision), None)


def check(database: Database) -> SchemaState:
    """State of the schema, with each difference between the tables and the models of this Salus."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from accounting.storage.models import Base

    version = current(database)
    with database.reading() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        differences = tuple(_flatten(compare_metadata(context, Base.metadata)))
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


def _flatten(differences: list[object]) -> list[str]:
    found: list[str] = []
    for difference in differences:
        if isinstance(difference, list):
            found.extend(_flatten(difference))
        else:
            found.append(
                " ".join(str(part) for part in difference) if isinstance(difference, tuple) else repr(difference)
            )
    return found
