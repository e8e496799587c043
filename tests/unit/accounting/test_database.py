"""Who may open the database, and error messages about its address."""

import os
import stat
from pathlib import Path

import pytest
from sqlalchemy import text

from accounting.storage import schema
from accounting.storage.database import open_database, parse_address, read_password
from nodedaemon.core.errors import OperatingError, RequestError
from nodedaemon.wire.envelope import UnreachableError

ROOT = Path(__file__).parents[3]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_owner_can_read_a_sqlite_file_and_its_logs(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        database = open_database(f"sqlite:///{tmp_path}/salus.db")
        schema.upgrade(database)
        files = sorted(tmp_path.iterdir())
    finally:
        os.umask(old)
    assert [path.name for path in files] == ["salus.db", "salus.db-shm", "salus.db-wal"]
    assert {mode(path) for path in files} == {0o600}
    database.close()


def test_a_file_that_others_can_read_gets_mode_0600(tmp_path: Path) -> None:
    path = tmp_path / "salus.db"
    path.touch(0o644)
    open_database(f"sqlite:///{path}").close()
    assert mode(path) == 0o600


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "salus.db").symlink_to(tmp_path / "elsewhere.db")
    with pytest.raises(UnreachableError):
        open_database(f"sqlite:///{tmp_path}/salus.db")


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("oracle://x", "use sqlite, postgresql or mariadb"),
        ("no address", "StorageUrl"),
        ("postgresql://salus:secret@host/salus", "contains a password"),
        ("sqlite://", "sqlite needs a file"),
    ],
)
def test_an_error_about_an_address_says_what_to_do_without_the_password(address: str, why: str) -> None:
    with pytest.raises(RequestError, match=why) as error:
        open_database(address)
    assert "secret" not in str(error.value)


def test_short_addresses_get_their_drivers() -> None:
    assert parse_address("postgresql://u@h/d").drivername == "postgresql+psycopg"
    assert parse_address("mysql+pymysql://u@h/d").drivername == "mariadb+pymysql"
    assert parse_address("mariadb://u@h/d").query == {"charset": "utf8mb4"}


def test_a_password_file_must_be_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("s3cret\nsecond line\n")
    path.chmod(0o600)
    assert read_password(path) == "s3cret"
    for bits in (0o640, 0o604, 0o660):
        path.chmod(bits)
        with pytest.raises(RequestError, match="chmod 600"):
            read_password(path)
    path.chmod(0o600)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(RequestError):
        read_password(tmp_path / "link")


def test_an_error_about_an_unreachable_server_does_not_show_the_password(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("s3cret\n")
    path.chmod(0o600)
    database = open_database(f"postgresql://salus@/salus?host={tmp_path}", path)
    with pytest.raises(UnreachableError) as error:
        schema.current(database)
    assert "s3cret" not in str(error.value)
    database.close()


def test_a_writer_that_finds_the_file_locked_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accounting.storage.database.LOCK_WAIT_S", 0)
    monkeypatch.setattr("accounting.storage.database.ATTEMPTS_MAX", 2)
    first, second = (open_database(f"sqlite:///{tmp_path}/salus.db") for _ in range(2))
    schema.upgrade(first)

    def work(connection: object) -> None:
        with pytest.raises(OperatingError, match="locked"):
            second.write(lambda other: other.execute(text("DELETE FROM events")))

    first.write(work)
    first.close()
    second.close()
