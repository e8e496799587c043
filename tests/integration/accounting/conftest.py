"""The same suite on three databases: each test gets a fresh, empty schema of SQLite, PostgreSQL or MariaDB."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from accounting import schema
from accounting.database import Database, open_database
from tests.support.databases import Server, mariadb_server, postgresql_server

_NUMBERS = count()


@pytest.fixture(scope="session")
def servers() -> Iterator[dict[str, Server]]:
    """Servers by kind, started on first use and ended with the run."""
    with ExitStack() as stack:

        class Lazy(dict[str, Server]):
            def __missing__(self, kind: str) -> Server:
                start = postgresql_server if kind == "postgresql" else mariadb_server
                self[kind] = stack.enter_context(start())
                return self[kind]

        yield Lazy()


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def address(request: pytest.FixtureRequest, servers: dict[str, Server], tmp_path: Path) -> Iterator[str]:
    """The StorageUrl of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/salus.db"
        return
    name = f"salus_{next(_NUMBERS)}"
    yield servers[request.param].create(name)
    servers[request.param].drop(name)


@pytest.fixture
def empty_database(address: str) -> Iterator[Database]:
    database = open_database(address)
    yield database
    database.close()


@pytest.fixture
def database(empty_database: Database) -> Database:
    """A database at the newest schema."""
    schema.upgrade(empty_database)
    return empty_database
