"""Access to the database: engine, transactions, retries, and all SQL that depends on the dialect.

A SQLite file has mode 0600 and uses WAL. A writer locks at the start of its transaction, so it never has to abort
halfway. A transaction that conflicts with another writer is retried a bounded number of times. Driver errors become
OperatingError, with the address of the database but never with the password.
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Dialect, Engine, Integer, String, Table, create_engine, event, exc
from sqlalchemy.engine import URL, make_url
from sqlalchemy.sql import ColumnElement, func

from nodedaemon.core.errors import OperatingError, RequestError
from nodedaemon.wire.envelope import UnreachableError

T = TypeVar("T")

# Bound parameters per statement: far below the limit of every database.
CHUNK = 500
# How long a writer waits for another one. A ledger's batch takes milliseconds.
LOCK_WAIT_S = 10
CONNECT_WAIT_S = 5
ANSWER_WAIT_S = 120
ATTEMPTS_MAX = 12
SQLITE_CACHE_KIB = 64 * 1024
# For a report over millions of rows, whose joins visit the same pages repeatedly. It is freed after the report.
SQLITE_REPORT_CACHE_KIB = 512 * 1024
# Checkpoint the log every 16 MiB: with the default of 1,000 pages, the same pages are written many times.
SQLITE_LOG_PAGES = 4_000

DRIVERS = {
    "sqlite": "sqlite",
    **dict.fromkeys(("postgresql", "postgresql+psycopg"), "postgresql+psycopg"),
    **dict.fromkeys(("mariadb", "mariadb+pymysql", "mysql", "mysql+pymysql"), "mariadb+pymysql"),
}
# PostgreSQL: serialization failure, deadlock, lock not available. MariaDB: lock wait timeout, deadlock, record changed.
RETRY_SQLSTATES = {"40001", "40P01", "55P03"}
RETRY_ERRNOS = {1205, 1213, 1020}


class Database:
    """An open database. Thread-safe: each transaction uses its own connection."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.dialect = engine.dialect.name
        self.address = engine.url.render_as_string(hide_password=True)

    @contextmanager
    def reading(self, *, is_large: bool = False) -> Iterator[Connection]:
        """A read-only transaction with one consistent view. `is_large` allows more cache, for reports."""
        with _translated(self.address), self._engine.connect() as connection:
            if self.dialect == "postgresql":
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            is_cache_raised = is_large and self.dialect == "sqlite"
            with connection.begin() as transaction:
                if is_cache_raised:
                    connection.exec_driver_sql(f"PRAGMA cache_size=-{SQLITE_REPORT_CACHE_KIB}")
                try:
                    yield connection
                finally:
                    if is_cache_raised:
                        connection.exec_driver_sql(f"PRAGMA cache_size=-{SQLITE_CACHE_KIB}")
                        connection.exec_driver_sql("PRAGMA shrink_memory")
                transaction.rollback()

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in one transaction and commit it. After a conflict with another writer, `work` runs again."""
        with _translated(self.address):
            for attempt in range(ATTEMPTS_MAX):
                try:
                    return self._write_once(work)
                except exc.DBAPIError as error:
                    if attempt + 1 == ATTEMPTS_MAX or not _is_conflict(error):
                        raise
        raise AssertionError("the last attempt returns or raises")

    def _write_once(self, work: Callable[[Connection], T]) -> T:
        with self._engine.connect() as connection:
            if self.dialect == "sqlite":
                connection = connection.execution_options(salus_begin="BEGIN IMMEDIATE")
            else:
                connection = connection.execution_options(isolation_level="READ COMMITTED")
            with connection.begin():
                return work(connection)

    def close(self) -> None:
        """Close all pooled connections. SQLite then merges its log into the file."""
        self._engine.dispose()


def open_database(address: str, password_file: Path | None = None, *, may_create: bool = True) -> Database:
    """Open the database at `address` (StorageUrl). It does not check the schema: see accounting.storage.schema.

    The password, if any, is the first line of `password_file`, which only its owner may read. If there is no
    SQLite file, an empty one is created unless `may_create` is False.
    """
    url = parse_address(address)
    is_file = url.get_backend_name() == "sqlite"
    if password_file is not None:
        url = url.set(password=read_password(password_file))
    if is_file:
        _prepare_file(url, may_create=may_create)
    try:
        # A server may have gone away since the last transaction, so ping it first. A file needs no ping.
        engine = create_engine(url, pool_pre_ping=not is_file, connect_args=_connect_arguments(url))
    except ModuleNotFoundError as error:
        raise OperatingError(
            f"database not opened: {url.render_as_string()}: no driver {error.name}; "
            f"install salus[{'mariadb' if 'pymysql' in url.drivername else 'postgresql'}]"
        ) from error
    if is_file:
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return Database(engine)


def parse_address(address: str) -> URL:
    """StorageUrl as a SQLAlchemy URL; RequestError unless it is an address of a supported database."""
    try:
        url = make_url(address)
    except (exc.ArgumentError, ValueError) as error:
        raise RequestError(
            f"database not opened: StorageUrl: {error}; write, for example, sqlite:////var/lib/salus/salus.db"
        ) from error
    if url.drivername not in DRIVERS:
        raise RequestError(
            f"database not opened: StorageUrl: {url.drivername!r} is not supported; use sqlite, postgresql or mariadb"
        )
    if url.password is not None:
        raise RequestError(
            "database not opened: StorageUrl contains a password, and everybody can read salus.conf; "
            "put the password into the file that StoragePassFile names (mode 0600)"
        )
    url = url.set(drivername=DRIVERS[url.drivername])
    if url.get_backend_name() == "mariadb":
        url = url.update_query_dict({"charset": "utf8mb4"})
    return url


def read_password(path: Path) -> str:
    """The first line of a file that only its owner may read; RequestError otherwise."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise RequestError(f"password not read: {path}: {error.strerror}; see StoragePassFile") from error
    with os.fdopen(descriptor, encoding="utf-8", errors="surrogateescape") as file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode) or state.st_mode & 0o077 or state.st_uid not in (0, os.geteuid()):
            raise RequestError(f"password not read: {path}: other users can read or change it; chmod 600 and chown it")
        return file.readline().rstrip("\r\n")


def insert_rows(
    connection: Connection,
    table: Table,
    names: Sequence[str],
    rows: Iterable[tuple[object, ...]],
    *,
    keys: Sequence[str] = (),
) -> None:
    """Insert `rows`, whose values are in the order of `names`.

    With `keys`, a row whose key exists is skipped. Without `keys`, such a row raises, and `Database.write` retries.
    """
    statement = _insert_text(connection.dialect, table, tuple(names), tuple(keys))
    if connection.dialect.name == "sqlite":
        # Stream rows from the iterator: rows that live only while they are bound trigger no garbage collection.
        with _cursor(connection, statement) as cursor:
            cursor.executemany(statement, rows)
    elif kept := list(rows):
        # PostgreSQL gets one array per column: it plans once, and no row needs its own message.
        is_by_column = connection.dialect.name == "postgresql"
        parameters: Any = _columns(table, names, kept) if is_by_column else kept
        connection.exec_driver_sql(statement, parameters)


def insert_new_rows(
    connection: Connection, table: Table, rows: Iterable[tuple[object, ...]], names: Sequence[str] = ()
) -> None:
    """Insert the rows whose primary key is new. Values are in the order of `names` or else of the table's columns."""
    keys = [column.name for column in table.primary_key.columns]
    insert_rows(connection, table, names or [column.name for column in table.columns], rows, keys=keys)


def _columns(table: Table, names: Sequence[str], rows: Sequence[tuple[object, ...]]) -> tuple[object, ...]:
    """One array per column. Integer arrays are formatted here, because the driver adapts element by element, which
    costs more than the server's work. A list of ints prints as an SQL array except for its brackets and None.
    """
    return tuple(
        "{" + str(list(column))[1:-1].replace("None", "NULL") + "}"
        if isinstance(table.c[name].type, Integer)
        else list(column)
        for name, column in zip(names, zip(*rows, strict=True), strict=True)
    )


@lru_cache(maxsize=256)
def _insert_text(dialect: Dialect, table: Table, names: tuple[str, ...], keys: tuple[str, ...]) -> str:
    quote = dialect.identifier_preparer.quote
    into = f"INSERT INTO {quote(table.name)} ({', '.join(map(quote, names))})"
    conflict = f"ON CONFLICT ({', '.join(map(quote, keys))}) DO NOTHING"
    match dialect.name:
        case "sqlite":
            source = f"VALUES ({', '.join('?' * len(names))})"
        case "postgresql":
            arrays = ", ".join(f"%s::{_array_type(dialect, table, name)}[]" for name in names)
            source = f"SELECT * FROM unnest({arrays})"  # noqa: S608 - names and types of our own tables
        case _:
            source = f"VALUES ({', '.join(['%s'] * len(names))})"
            # A no-op update: INSERT IGNORE would also hide rows that do not fit their columns.
            conflict = f"ON DUPLICATE KEY UPDATE {quote(keys[0])} = {quote(keys[0])}" if keys else ""
    return f"{into} {source}{' ' + conflict if keys else ''}"


def chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """`values` in parts that fit into one statement."""
    for start in range(0, len(values), CHUNK):
        yield values[start : start + CHUNK]


def select_rows(
    connection: Connection,
    table: Table,
    names: Sequence[str],
    among: Mapping[str, Sequence[object]],
    *,
    is_locked: bool = False,
) -> list[dict[str, Any]]:
    """The rows that match one of the values in `among` for each of its columns, locked on request.

    The ledger runs this for every batch. Plain text costs a fifth of a SQLAlchemy expression, and SQLAlchemy's result
    set-up for forty columns costs more than an empty query.
    """
    counts = tuple((name, len(values)) for name, values in among.items())
    statement = _select_text(connection.dialect, table, tuple(names), counts, is_locked=is_locked)
    parameters = tuple(value for values in among.values() for value in values)
    with _cursor(connection, statement) as cursor:
        cursor.execute(statement, parameters)
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


@lru_cache(maxsize=1024)
def _select_text(
    dialect: Dialect, table: Table, names: tuple[str, ...], counts: tuple[tuple[str, int], ...], *, is_locked: bool
) -> str:
    quote = dialect.identifier_preparer.quote
    mark = "?" if dialect.name == "sqlite" else "%s"
    conditions = [f"{quote(name)} IN ({', '.join([mark] * count)})" for name, count in counts]
    statement = f"SELECT {', '.join(map(quote, names))} FROM {quote(table.name)} WHERE {' AND '.join(conditions)}"  # noqa: S608
    if is_locked and dialect.name != "sqlite":
        statement += f" ORDER BY {quote(next(iter(table.primary_key.columns)).name)} FOR UPDATE"
    return statement


@contextmanager
def _cursor(connection: Connection, statement: str) -> Iterator[Any]:
    """The driver's own cursor in the connection's transaction."""
    base_error = connection.dialect.loaded_dbapi.Error
    cursor = connection.connection.cursor()
    try:
        yield cursor
    except base_error as error:
        # Raise what SQLAlchemy would raise, so that retries and messages work.
        raise exc.DBAPIError.instance(statement, None, error, base_error, dialect=connection.dialect) from error
    finally:
        cursor.close()


def _array_type(dialect: Dialect, table: Table, name: str) -> str:
    # A cast to varchar(n) truncates silently; with text, the column rejects what is too long.
    kind = table.c[name].type
    return "text" if isinstance(kind, String) else kind.compile(dialect)


def least(dialect: str, *values: ColumnElement[int]) -> ColumnElement[int]:
    """The smallest of several expressions, none of which is NULL."""
    return func.min(*values) if dialect == "sqlite" else func.least(*values)


def greatest(dialect: str, *values: ColumnElement[int]) -> ColumnElement[int]:
    """The largest of several expressions, none of which is NULL."""
    return func.max(*values) if dialect == "sqlite" else func.greatest(*values)


def _connect_arguments(url: URL) -> dict[str, Any]:
    match url.get_backend_name():
        case "sqlite":
            return {"timeout": LOCK_WAIT_S, "check_same_thread": False}
        case "postgresql":
            # Leave synchronous_commit to the site: what the ledger has committed must survive a crash.
            return {"connect_timeout": CONNECT_WAIT_S, "options": f"-c lock_timeout={LOCK_WAIT_S}s"}
        case _:
            return {
                "connect_timeout": CONNECT_WAIT_S,
                "read_timeout": ANSWER_WAIT_S,
                "write_timeout": ANSWER_WAIT_S,
                "init_command": f"SET SESSION innodb_lock_wait_timeout={LOCK_WAIT_S}",
            }


def _prepare_file(url: URL, *, may_create: bool) -> None:
    if not url.database or url.database == ":memory:":
        raise RequestError("database not opened: StorageUrl: sqlite needs a file; write sqlite:////path/to/salus.db")
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if may_create else 0)
    try:
        descriptor = os.open(url.database, flags, 0o600)
    except OSError as error:
        raise UnreachableError(
            f"database not opened: {url.database}: {error.strerror}; "
            "create it with salus-acct db upgrade, or check StorageUrl"
        ) from error
    try:
        if os.fstat(descriptor).st_mode & 0o077:
            # SQLite gives its log and index files the mode of the database file.
            os.fchmod(descriptor, 0o600)
    except PermissionError as error:
        raise UnreachableError(
            f"database not opened: {url.database}: other users can read it, and we do not own it; chmod 600 it"
        ) from error
    finally:
        os.close(descriptor)


def _set_up_sqlite(connection: Any, _record: object) -> None:
    # Python's driver must not begin transactions itself: it would begin them as read transactions.
    connection.isolation_level = None
    pragmas = ["journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", f"busy_timeout={LOCK_WAIT_S * 1000}"]
    # A report sorts a month of rows; with the default cache of 2 MiB it sorts on disk.
    for pragma in (*pragmas, f"cache_size=-{SQLITE_CACHE_KIB}", f"wal_autocheckpoint={SQLITE_LOG_PAGES}"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("salus_begin", "BEGIN"))


def _is_conflict(error: exc.DBAPIError) -> bool:
    if isinstance(error, exc.IntegrityError):
        # Two writers created the same row; the second finds it on its next attempt.
        return True
    original = error.orig
    return (
        getattr(original, "sqlstate", None) in RETRY_SQLSTATES
        or getattr(original, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
        or not RETRY_ERRNOS.isdisjoint(getattr(original, "args", ())[:1])
    )


@contextmanager
def _translated(address: str) -> Iterator[None]:
    try:
        yield
    except exc.OperationalError as error:
        raise UnreachableError(
            f"database not reached: {address}: {_first_line(error)}; check that it is running, and check StorageUrl"
        ) from error
    except exc.SQLAlchemyError as error:
        raise OperatingError(f"database failed: {address}: {_first_line(error)}; see docs/accounting.md") from error


def _first_line(error: exc.SQLAlchemyError) -> str:
    original = error.orig if isinstance(error, exc.DBAPIError) else error
    return str(original).strip().splitlines()[0] if str(original).strip() else type(original).__name__
