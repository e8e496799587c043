"""A month's report on a million job runs, against the plain SQL aggregate on the same database, in one run.

The plain side is one statement that sums held, occupied, busy, iterations and memory by account and user, in the plan
that SQLite chooses and in the order of the table; the faster of the two counts. The report
also cuts at the window's edges, takes suspended time out, looks up each profile's solo time, computes fairness job by
job, and finds the median wait. ARGS: [--jobs N] [--rounds N] [--growth 10000,100000]
"""

import argparse
import json
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from pathlib import Path

from accounting import schema
from accounting.database import SQLITE_CACHE_KIB, open_database
from accounting.jobs import JOBS
from accounting.profiles import PROFILES
from accounting.reports import make_report
from accounting.selection import Selection
from accounting.usage import USAGE
from accounting.viewer import Viewer

S = 1_000_000_000
T0 = 1_793_491_200 * S
MONTH = 30 * 86_400 * S
ACCOUNTS, USERS, SIGNATURES, DEVICES = 20, 200, 10, 64
ROOT = Viewer(uid=0, user="root", is_operator=True)

PLAIN = """
SELECT jobs.account, jobs."user", COUNT(*), SUM(jobs.elapsed_ns * jobs.device_count), SUM(usage.occupied_ns),
       SUM(usage.busy_ns), SUM(usage.iteration_count), SUM(usage.peak_mib_ms - usage.held_mib_ms)
FROM usage JOIN jobs ON jobs.id = usage.job_id
WHERE usage.start_utc_ns >= ? AND usage.start_utc_ns < ?
GROUP BY jobs.account, jobs."user"
"""
# The same with the index on the time hidden from the planner.
PLAIN_IN_ORDER = PLAIN.replace("usage.start_utc_ns >=", "usage.start_utc_ns + 0 >=").replace(
    "usage.start_utc_ns <", "usage.start_utc_ns + 0 <"
)


def fill(path: Path, count: int) -> None:
    """A month of jobs, one interval of usage each, written as plainly as possible."""
    database = open_database(f"sqlite:///{path}")
    schema.upgrade(database)
    database.close()
    connection = sqlite3.connect(path)
    dice = random.Random(1)
    connection.execute("INSERT INTO clusters VALUES (1, 'alpha')")
    connection.execute("INSERT INTO nodes VALUES (1, 1, 'n1')")
    connection.execute("INSERT INTO incarnations VALUES (1, 1, 'i1', 'b', 'v', 0, 0, NULL)")
    devices = [
        (number, 1, f"d{number}", number, f"model{number % 2}", 1 << 34, 1 << 30, 0) for number in range(DEVICES)
    ]
    connection.executemany("INSERT INTO devices VALUES (?,?,?,?,?,?,?,?)", devices)
    profiles = [
        {"id": None, "cluster_id": 1, "user": f"user{user}", "signature": f"sig{signature}", "device_model": model}
        | {"solo_iteration_ns": 10**8 if (user + signature) % 4 else None}
        for user in range(USERS)
        for signature in range(SIGNATURES)
        for model in ("model0", "model1")
    ]
    insert(connection, PROFILES, profiles)
    step = 50_000
    for start in range(0, count, step):
        numbers = range(start + 1, min(start + step, count) + 1)
        insert(connection, JOBS, [job(number, dice) for number in numbers])
        insert(connection, USAGE, [interval(number, count) for number in numbers])
        connection.commit()
        print(f"filled {numbers[-1]} of {count}", file=sys.stderr)
    connection.execute("ANALYZE")
    connection.commit()
    connection.close()


def insert(connection: sqlite3.Connection, table: object, rows: list[dict[str, object]]) -> None:
    columns = list(table.columns)  # type: ignore[attr-defined]
    defaults = {
        c.name: None if c.nullable or c.name == "id" else "" if str(c.type).startswith("VARCHAR") else 0
        for c in columns
    }
    names = ", ".join(f'"{c.name}"' for c in columns)
    statement = f"INSERT INTO {table.name} ({names}) VALUES ({', '.join('?' * len(columns))})"  # type: ignore[attr-defined]
    connection.executemany(statement, [tuple((defaults | row).values()) for row in rows])


def job(number: int, dice: random.Random) -> dict[str, object]:
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


def interval(number: int, count: int) -> dict[str, object]:
    start_ns = T0 + number * 7919 * S % MONTH
    return {
        "job_id": number, "device_id": number % DEVICES, "incarnation_id": 1, "start_mono_ns": number,
        "start_utc_ns": start_ns,
        "span_ns": 300 * S, "present_ns": 300 * S, "running_ns": 200 * S, "wait_ns": 50 * S, "outside_ns": 50 * S,
        "busy_ns": (100 + number % 90) * S, "occupied_ns": 200 * S, "entitled_ns": 150 * S, "iteration_count": 1500,
        "peak_mib_ms": 10**7, "held_mib_ms": 4 * 10**6,
    }  # fmt: skip


def measure(path: Path, rounds: int) -> dict[str, float]:
    window = (T0 + S, T0 + MONTH - S)
    database = open_database(f"sqlite:///{path}")
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA cache_size=-{SQLITE_CACHE_KIB}")
    times: dict[str, list[float]] = {"plain_by_index_s": [], "plain_in_order_s": [], "report_s": []}
    for _ in range(rounds):
        for name, statement in (("plain_by_index_s", PLAIN), ("plain_in_order_s", PLAIN_IN_ORDER)):
            started = time.perf_counter()
            rows = connection.execute(statement, window).fetchall()
            times[name].append(time.perf_counter() - started)
        started = time.perf_counter()
        selection = Selection(start_utc_ns=window[0], end_utc_ns=window[1])
        made = make_report(database, ROOT, "summary", selection, now_utc_ns=T0 + 2 * MONTH)
        times["report_s"].append(time.perf_counter() - started)
        assert len([row for row in made.rows if row.depth]) == len(rows)
        assert abs(sum(row[5] for row in rows) - made.total.busy_ns) <= 10**-3 * made.total.busy_ns
    connection.close()
    database.close()
    medians = {name: round(statistics.median(values), 4) for name, values in times.items()}
    return {**medians, "plain_s": min(medians["plain_by_index_s"], medians["plain_in_order_s"])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--growth", default="10000,100000")
    options = parser.parse_args()
    sizes = [*(int(size) for size in options.growth.split(",") if size), options.jobs]
    found = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "salus.db"
            fill(path, size)
            found.append({"jobs": size, **measure(path, options.rounds)})
            print(f"{size} jobs: {found[-1]}", file=sys.stderr)
    last, first = found[-1], found[0]
    growth = (last["report_s"] / first["report_s"]) / (last["jobs"] / first["jobs"])
    ratio = last["report_s"] / last["plain_s"]
    result = {"bench": "report", "n": options.jobs, "sizes": found, "ratio": round(ratio, 3), "ratio_wanted": 3.0}
    print(json.dumps({**result, "growth_over_linear": round(growth, 3), "growth_wanted": 1.0}))


if __name__ == "__main__":
    main()
