"""A month's report on a million job runs, against the plain SQL aggregate on the same database, in one run.

The plain side is one statement that sums held, occupied, busy, iterations and memory by account and user, in the plan
that the database chooses and in the order of the table; the faster of the two counts. The report also cuts at the
window's edges, subtracts suspended time, looks up each profile's solo time, computes fairness job by job, and finds the
median wait. ARGS: [--jobs N] [--rounds N] [--growth 10000,100000]
[--database sqlite|postgresql|mariadb]
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Table

from accounting.reports.report import make_report
from accounting.reports.selection import Selection
from accounting.storage import schema
from accounting.storage.database import Database, insert_rows, open_database
from accounting.storage.tables import CLUSTERS, INCARNATIONS, JOBS, NODES, PROFILES, USAGE
from accounting.storage.tables import DEVICES as DEVICE_TABLE
from accounting.viewer import Viewer
from tests.support.databases import mariadb_server, postgresql_server

S = 1_000_000_000
T0 = 1_793_491_200 * S
MONTH = 30 * 86_400 * S
ACCOUNTS, USERS, SIGNATURES, DEVICES = 20, 200, 10, 64
ROOT = Viewer(uid=0, user="root", is_operator=True)

Row = dict[str, object]

PLAIN = """
SELECT jobs.account, jobs."user", COUNT(*), SUM(jobs.elapsed_ns * jobs.device_count), SUM("usage".occupied_ns),
       SUM("usage".busy_ns), SUM("usage".iteration_count), SUM("usage".peak_mib_ms - "usage".held_mib_ms)
FROM "usage" JOIN jobs ON jobs.id = "usage".job_id
WHERE "usage".start_utc_ns >= ? AND "usage".start_utc_ns < ?
GROUP BY jobs.account, jobs."user"
"""
# The same with the index on the time hidden from the planner.
PLAIN_IN_ORDER = PLAIN.replace("start_utc_ns >=", "start_utc_ns + 0 >=").replace("start_utc_ns <", "start_utc_ns + 0 <")


def fill(database: Database, count: int) -> None:
    """A month of jobs, one interval of usage each, written as plainly as possible."""
    dice = random.Random(1)
    devices = [
        {"id": number + 1, "node_id": 1, "uuid": f"d{number}", "position": number, "model": f"model{number % 2}",
         "capacity_bytes": 1 << 34, "lane_reserve_bytes": 1 << 30}
        for number in range(DEVICES)
    ]  # fmt: skip
    profiles = [
        {"id": None, "cluster_id": 1, "user": f"user{user}", "signature": f"sig{signature}", "device_model": model}
        | {"solo_iteration_ns": 10**8 if (user + signature) % 4 else None}
        for user in range(USERS)
        for signature in range(SIGNATURES)
        for model in ("model0", "model1")
    ]
    for number, profile in enumerate(profiles, 1):
        profile["id"] = number

    def places(connection: Connection) -> None:
        insert(connection, CLUSTERS, [{"id": 1, "name": "alpha"}])
        insert(connection, NODES, [{"id": 1, "cluster_id": 1, "name": "n1"}])
        insert(connection, INCARNATIONS, [{"id": 1, "node_id": 1, "name": "i1"}])
        insert(connection, DEVICE_TABLE, devices)
        insert(connection, PROFILES, profiles)

    database.write(places)
    step = 20_000
    for start in range(0, count, step):
        numbers = range(start + 1, min(start + step, count) + 1)
        jobs, intervals = [job(number, dice) for number in numbers], [interval(number) for number in numbers]

        def month(connection: Connection, jobs: list[Row] = jobs, intervals: list[Row] = intervals) -> None:
            insert(connection, JOBS, jobs)
            insert(connection, USAGE, intervals)

        database.write(month)
        print(f"filled {numbers[-1]} of {count}", file=sys.stderr)
    database.write(analyze)


def analyze(connection: Connection) -> None:
    is_mariadb = connection.dialect.name not in ("sqlite", "postgresql")
    result = connection.exec_driver_sql(f"ANALYZE TABLE {JOBS.name}, `{USAGE.name}`" if is_mariadb else "ANALYZE")
    result.close()


def insert(connection: Connection, table: Table, rows: list[Row]) -> None:
    defaults: Row = {
        c.name: None if c.nullable else "" if str(c.type).startswith("VARCHAR") else False if c.type.python_type is bool
        else 0
        for c in table.columns
    }  # fmt: skip
    insert_rows(connection, table, tuple(defaults), [tuple((defaults | row).values()) for row in rows])


def job(number: int, dice: random.Random) -> Row:
    start_ns = T0 + number * 7919 * S % MONTH
    elapsed_ns = dice.randrange(60, 7200) * S
    user = number % USERS
    return {
        "id": number, "cluster_id": 1, "slurm_job_id": number, "restart_count": 0, "source": 1, "user": f"user{user}",
        "account": f"account{user % ACCOUNTS}", "signature": f"sig{number % SIGNATURES}",
        "device_count": 1, "state": "COMPLETED", "submit_utc_ns": start_ns - S, "start_utc_ns": start_ns,
        "end_utc_ns": start_ns + elapsed_ns, "until_utc_ns": start_ns + elapsed_ns, "elapsed_ns": elapsed_ns,
        "wait_ns": int(dice.expovariate(1 / 600)) * S,
    }  # fmt: skip


def interval(number: int) -> Row:
    start_ns = T0 + number * 7919 * S % MONTH
    return {
        "job_id": number, "device_id": number % DEVICES + 1, "incarnation_id": 1, "start_mono_ns": number,
        "start_utc_ns": start_ns,
        "span_ns": 300 * S, "present_ns": 300 * S, "running_ns": 200 * S, "wait_ns": 50 * S, "outside_ns": 50 * S,
        "busy_ns": (100 + number % 90) * S, "occupied_ns": 200 * S, "entitled_ns": 150 * S, "iteration_count": 1500,
        "peak_mib_ms": 10**7, "held_mib_ms": 4 * 10**6,
    }  # fmt: skip


def measure(database: Database, rounds: int) -> dict[str, float]:
    window = (T0 + S, T0 + MONTH - S)
    times: dict[str, list[float]] = {"plain_by_index_s": [], "plain_in_order_s": [], "report_s": []}
    for _ in range(rounds):
        for name, statement in (("plain_by_index_s", PLAIN), ("plain_in_order_s", PLAIN_IN_ORDER)):
            with database.reading() as connection:
                if connection.dialect.name != "sqlite":
                    statement = statement.replace("?", "%s")
                if connection.dialect.name not in ("sqlite", "postgresql"):
                    statement = statement.replace('"', "`")
                started = time.perf_counter()
                rows = connection.exec_driver_sql(statement, window).fetchall()
                times[name].append(time.perf_counter() - started)
        started = time.perf_counter()
        selection = Selection(start_utc_ns=window[0], end_utc_ns=window[1])
        made = make_report(database, ROOT, "summary", selection, now_utc_ns=T0 + 2 * MONTH)
        times["report_s"].append(time.perf_counter() - started)
        assert len([row for row in made.rows if row.depth]) == len(rows)
        assert abs(sum(row[5] for row in rows) - made.total.busy_ns) <= 10**-3 * made.total.busy_ns
    medians = {name: round(statistics.median(values), 4) for name, values in times.items()}
    return {**medians, "plain_s": min(medians["plain_by_index_s"], medians["plain_in_order_s"])}


@contextmanager
def fresh(kind: str) -> Iterator[Database]:
    """An empty database at the newest schema."""
    if kind == "sqlite":
        with tempfile.TemporaryDirectory() as directory:
            yield from opened(f"sqlite:///{directory}/salus.db")
        return
    with (postgresql_server if kind == "postgresql" else mariadb_server)() as server:
        yield from opened(server.create("report"))


def opened(address: str) -> Iterator[Database]:
    database = open_database(address)
    schema.upgrade(database)
    yield database
    database.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--growth", default="10000,100000")
    parser.add_argument("--database", default="sqlite", choices=("sqlite", "postgresql", "mariadb"))
    options = parser.parse_args()
    sizes = [*(int(size) for size in options.growth.split(",") if size), options.jobs]
    found = []
    for size in sizes:
        with fresh(options.database) as database:
            fill(database, size)
            found.append({"jobs": size, **measure(database, options.rounds)})
            print(f"{size} jobs: {found[-1]}", file=sys.stderr)
    last, first = found[-1], found[0]
    growth = (last["report_s"] / first["report_s"]) / (last["jobs"] / first["jobs"])
    ratio = last["report_s"] / last["plain_s"]
    result = {
        "bench": "report",
        "database": options.database,
        "n": options.jobs,
        "sizes": found,
        "ratio": round(ratio, 3),
        "ratio_wanted": 3.0,
    }
    print(json.dumps({**result, "growth_over_linear": round(growth, 3), "growth_wanted": 1.0}))


if __name__ == "__main__":
    main()
