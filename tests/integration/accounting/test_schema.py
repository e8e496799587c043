"""The schema migrates up, down and up again, matches the tables, and is refused if unknown."""

import pytest
from sqlalchemy import text

from accounting.ingest.ledger import LedgerWriter
from accounting.storage import schema
from accounting.storage.database import Database
from nodedaemon.core.errors import OperatingError
from tests.support.scenario import dump, records


@pytest.fixture
def database(empty_database: Database) -> Database:
    """A separate database for each test, because these tests change the schema."""
    schema.upgrade(empty_database)
    return empty_database


def test_the_tables_and_the_newest_migration_match(database: Database) -> None:
    state = schema.check(database)
    assert state.differences == ()
    assert state.current == state.head == schema.head()


def test_up_down_and_up_again_on_a_seeded_database(database: Database) -> None:
    LedgerWriter(database).write(records())
    seeded = dump(database)
    assert all(seeded.values()), "the scenario fills each table"
    schema.downgrade(database, "base")
    assert schema.current(database) is None
    schema.upgrade(database)
    assert schema.check(database).differences == ()
    LedgerWriter(database).write(records())
    assert dump(database) == seeded


def test_a_second_upgrade_keeps_every_row(database: Database) -> None:
    LedgerWriter(database).write(records())
    seeded = dump(database)
    schema.upgrade(database)
    assert dump(database) == seeded


def test_a_newer_schema_is_refused_with_a_clear_message(database: Database) -> None:
    def raise_version(connection: object) -> None:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))  # type: ignore[attr-defined]

    database.write(raise_version)
    for refused in (lambda: schema.require(database), lambda: schema.upgrade(database)):
        with pytest.raises(OperatingError, match=r"its schema 9999 is newer than 0\d+.*upgrade Salus on this host"):
            refused()


def test_an_empty_database_is_refused_with_advice(empty_database: Database) -> None:
    with pytest.raises(OperatingError, match=r"its schema is empty.*run salus-acct db upgrade"):
        schema.require(empty_database)
