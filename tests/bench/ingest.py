"""Records per second through the ledger and through a bare executemany of the same rows, on each database.

The bare side inserts finished tuples with plain INSERT through the driver into the same schema, in batches of the same
size with a commit each. It does none of the ledger's work: decoding, numbering, merging, idempotence. ARGS:
[--records N] [--batch N] [--rounds N] [--databases sqlite,postgresql,mariadb]
"""

import argparse
import json
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from sqlalchemy import Table, select

from accounting.ingest.ledger import LedgerWriter
from accounting.records import JobKey, JobRecord, Record, SessionRecord, UsageRecord, decode, encode
from accounting.storage import schema
from accounting.storage.database import Database, open_database
from accounting.storage.tables import JOBS, METADATA, SESSIONS, USAGE
from tests.support.databases import Server, mariadb_server, postgresql_server

S = 1_000_000_000
T0 = 1_793_491_200 * S
# A job of two hours with an interval every five minutes: 24 rows of usage, besides its job and its session.
USAGE_PER_JOB = 24


def make_records(count: int) -> list[Record]:
    made: list[Record] = []
    number = 0
    while len(made) < count:
        number += 1
        key = JobKey(cluster="alpha", job_id=number)
        node, device = f"n{number % 16:02}", f"d{number % 4}"
        start_ns = T0 + number * S
        span_ns = USAGE_PER_JOB * 300 * S
        made.append(
            JobRecord(
                key=key, user=f"user{number % 50}", account=f"account{number % 10}", name="train", signature="sig",
                submit_utc_ns=start_ns - 60 * S, start_utc_ns=start_ns, start_mono_ns=start_ns - T0,
                end_utc_ns=start_ns + span_ns, end_mono_ns=start_ns + span_ns - T0, state="COMPLETED",
            )
        )  # fmt: skip
        place = {"node": node, "device": device, "incarnation": f"{node}-i"}
        made.append(
            SessionRecord(
                job=key, session=number, start_utc_ns=start_ns, start_mono_ns=start_ns - T0,
                end_utc_ns=start_ns + span_ns, end_mono_ns=start_ns + span_ns - T0, iteration_count=1000, **place,
            )
        )  # fmt: skip
        for step in range(USAGE_PER_JOB):
            at_ns = start_ns + step * 300 * S
            made.append(
                UsageRecord(
                    job=key, start_utc_ns=at_ns, start_mono_ns=at_ns - T0, span_ns=300 * S, present_ns=300 * S,
                    running_ns=200 * S, wait_ns=50 * S, suspended_ns=0, outside_ns=50 * S, busy_ns=150 * S,
                    occupied_ns=180 * S, entitled_ns=160 * S, iteration_count=40, handover_count=12,
                    persistent_bytes_max=1 << 30, ephemeral_bytes_max=1 << 31, peak_mib_ms=10**6, held_mib_ms=10**5,
                    **place,
                )
            )  # fmt: skip
    return made[:count]


def time_ledger(database: Database, records: Sequence[Record], batch: int) -> float:
    """From records to committed rows."""
    writer = LedgerWriter(database)
    started = time.perf_counter()
    for start in range(0, len(records), batch):
        writer.write(records[start : start + batch])
    return time.perf_counter() - started


def decode_rate(records: Sequence[Record]) -> float:
    """Records per second decoded from the spool's bytes, which the daemon does before it calls the ledger."""
    spooled = [encode(record) for record in records]
    started = time.perf_counter()
    for payload in spooled:
        decode(payload)
    return len(spooled) / (time.perf_counter() - started)


def rows_of(database: Database) -> list[tuple[Table, list[tuple[Any, ...]]]]:
    with database.reading() as connection:
        return [
            (table, [tuple(row) for row in connection.execute(select(table))])
            for table in METADATA.sorted_tables
            if table.name != "watermarks"
        ]


def time_bare(address: str, tables: Sequence[tuple[Table, list[tuple[Any, ...]]]], batch: int) -> float:
    """Plain INSERTs of the same rows, one batch per transaction."""
    connection, mark, close = connect(address)
    with close():
        cursor = connection.cursor()
        facts = {JOBS.name, SESSIONS.name, USAGE.name}
        for table, rows in tables:
            if table.name not in facts and rows:
                cursor.executemany(statement_of(table, mark), rows)
        connection.commit()
        started = time.perf_counter()
        for table, rows in tables:
            if table.name in facts:
                for start in range(0, len(rows), batch):
                    cursor.executemany(statement_of(table, mark), rows[start : start + batch])
                    connection.commit()
        return time.perf_counter() - started


def statement_of(table: Table, mark: str) -> str:
    quote = "`" if mark == "%s`" else '"'
    names = ", ".join(f"{quote}{column.name}{quote}" for column in table.columns)
    marks = ", ".join([mark.rstrip("`")] * len(table.columns))
    return f"INSERT INTO {quote}{table.name}{quote} ({names}) VALUES ({marks})"


def connect(address: str) -> tuple[Any, str, Callable[[], Any]]:
    @contextmanager
    def closing(connection: Any) -> Iterator[None]:
        try:
            yield
        finally:
            connection.close()

    if address.startswith("sqlite"):
        connection: Any = sqlite3.connect(address.removeprefix("sqlite:///"))
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        return connection, "?", lambda: closing(connection)
    options = dict(part.split("=", 1) for part in address.partition("?")[2].split("&"))
    name = address.partition("?")[0].rpartition("/")[2]
    if address.startswith("postgresql"):
        import psycopg

        connection = psycopg.connect(host=options["host"], user="postgres", dbname=name)
        return connection, "%s", lambda: closing(connection)
    import pymysql

    connection = pymysql.connect(unix_socket=options["unix_socket"], user="root", database=name, charset="utf8mb4")
    return connection, "%s`", lambda: closing(connection)


def measure(kind: str, server: Server | None, options: argparse.Namespace, records: Sequence[Record]) -> dict[str, Any]:
    ratios, ledgers, bares = [], [], []
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory() as directory:

            def fresh(name: str, directory: str = directory, number: int = number) -> str:
                if server is None:
                    return f"sqlite:///{directory}/{name}.db"
                return server.create(f"{name}_{number}")

            addresses = [fresh("ledger"), fresh("bare")]
            databases = [open_database(address) for address in addresses]
            for database in databases:
                schema.upgrade(database)
            ledger_s = time_ledger(databases[0], records, options.batch)
            tables = rows_of(databases[0])
            count = sum(len(rows) for table, rows in tables if table.name in ("jobs", "sessions", "usage"))
            assert count == len(records), "one row per record"
            bare_s = time_bare(addresses[1], tables, options.batch)
            for database in databases:
                database.close()
            if server is not None:
                for name in ("ledger", "bare"):
                    server.drop(f"{name}_{number}")
        ledgers.append(len(records) / ledger_s)
        bares.append(len(records) / bare_s)
        ratios.append(bare_s / ledger_s)
        print(f"{kind} round {number + 1}: ledger {ledgers[-1]:.0f}/s, bare {bares[-1]:.0f}/s", file=sys.stderr)
    return {
        "ledger_records_per_s": round(statistics.median(ledgers)),
        "bare_rows_per_s": round(statistics.median(bares)),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--databases", default="sqlite,postgresql,mariadb")
    options = parser.parse_args()
    records = make_records(options.records)
    found: dict[str, Any] = {}
    for kind in options.databases.split(","):
        with ExitStack() as stack:
            start = {"postgresql": postgresql_server, "mariadb": mariadb_server}.get(kind)
            server = stack.enter_context(start()) if start else None
            found[kind] = measure(kind, server, options, records)
    ratio = min(entry["ratio"] for entry in found.values())
    result = {"bench": "ingest", "n": options.records, "batch": options.batch, "databases": found, "ratio": ratio}
    print(json.dumps({**result, "ratio_wanted": 0.5, "decoded_records_per_s": round(decode_rate(records))}))


if __name__ == "__main__":
    main()
