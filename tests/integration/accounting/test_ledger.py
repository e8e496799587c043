"""The ledger's writes: any order, many writers, hostile names, and late records."""

import random
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from sqlalchemy import func, select

from accounting.ingest.ledger import LedgerWriter
from accounting.profiles import ProfileKey, find_profile
from accounting.records import JobKey, JobRecord, MeasurementRecord, Record, Source, UsageRecord
from accounting.reports.report import make_report
from accounting.reports.selection import Selection
from accounting.storage import retention
from accounting.storage.database import Database, open_database
from accounting.storage.tables import JOBS, METADATA
from accounting.viewer import Viewer
from tests.support.scenario import END, MIB, MODEL, T0, S, dump, key, records

ROOT = Viewer(uid=0, user="root", is_operator=True)
WHOLE = Selection(start_utc_ns=0, end_utc_ns=END)
# Names that would break a query built from text, or a pattern match in place of a comparison.
NAMES = [
    "'; DROP TABLE jobs; --",
    'a"b',
    "a_a",
    "aba",
    "a%",
    "a",
    "A",
    "a ",
    "Åsa 渡辺 🜨",
    "\\",
    "%s",
    "{0}",
    ":n",
    "?",
]


def one(database: Database, job: JobKey) -> dict[str, object]:
    with database.reading() as connection:
        statement = select(JOBS).where(JOBS.c.slurm_job_id == job.job_id, JOBS.c.restart_count == job.restart_count)
        return dict(connection.execute(statement).mappings().one())


def usage(job: JobKey, node: str, start_s: int, busy_s: int = 1) -> UsageRecord:
    at_ns, busy_ns = start_s * S, busy_s * S
    return UsageRecord(
        job=job, node=node, device="d0", incarnation=f"{node}-i", start_utc_ns=T0 + at_ns, start_mono_ns=at_ns,
        span_ns=60 * S, present_ns=60 * S, running_ns=busy_ns, wait_ns=0, suspended_ns=0, outside_ns=60 * S - busy_ns,
        busy_ns=busy_ns, occupied_ns=30 * S, entitled_ns=busy_ns, iteration_count=busy_s,
    )  # fmt: skip


def test_slurms_times_win_in_any_order(database: Database) -> None:
    node = JobRecord(key=key(1), user="ada", start_utc_ns=T0, end_utc_ns=T0 + 12 * S, signature="sig")
    slurm = JobRecord(
        key=key(1), source=Source.SLURM, user="ada", account="x", start_utc_ns=T0 - S, end_utc_ns=T0 + 10 * S
    )
    writer = LedgerWriter(database)
    for order in ((node, slurm), (slurm, node), (node,)):
        writer.write(list(order))
        row = one(database, key(1))
        assert (row["start_utc_ns"], row["elapsed_ns"]) == (T0 - S, 11 * S) or order == (node,)
    row = one(database, key(1))
    assert (row["elapsed_ns"], row["signature"], row["account"]) == (11 * S, "sig", "x")


def test_the_earliest_start_and_longest_run_of_several_nodes_count(database: Database) -> None:
    parts = [
        JobRecord(
            key=key(2), start_utc_ns=T0 + delay * S, start_mono_ns=delay * S, end_utc_ns=T0 + 100 * S,
            end_mono_ns=100 * S, device_count=2,
        )
        for delay in (3, 1, 2)
    ]  # fmt: skip
    for part in parts:
        LedgerWriter(database).write([part])
    row = one(database, key(2))
    assert (row["start_utc_ns"], row["elapsed_ns"], row["device_count"]) == (T0 + S, 99 * S, 2)


def test_a_later_sluid_matches_its_job_and_distinguishes_a_reused_id(database: Database) -> None:
    first, second = (JobKey(cluster="alpha", job_id=9, sluid=sluid) for sluid in ("sAAAA1", "sBBBB2"))
    writer = LedgerWriter(database)
    writer.write([JobRecord(key=key(9), user="ada")])
    writer.write([JobRecord(key=first, account="x")])
    writer.write([JobRecord(key=second, user="ben")])
    with database.reading() as connection:
        rows = connection.execute(select(JOBS.c.sluid, JOBS.c.user, JOBS.c.account).order_by(JOBS.c.id)).all()
    assert [tuple(row) for row in rows] == [("sAAAA1", "ada", "x"), ("sBBBB2", "ben", "")]


def test_a_stepped_clock_never_gives_a_negative_time(database: Database) -> None:
    LedgerWriter(database).write([JobRecord(key=key(3), start_utc_ns=T0 + 3600 * S, end_utc_ns=T0 + 10 * S)])
    assert one(database, key(3))["elapsed_ns"] == 0


def test_hostile_names_are_stored_and_compared_as_values(database: Database) -> None:
    made: list[Record] = []
    for number, name in enumerate(NAMES):
        job = key(1000 + number)
        made.append(
            JobRecord(key=job, user=name, account=name, name=name, partition=name, start_utc_ns=T0, end_utc_ns=T0 + S)
        )
        made.append(usage(job, "n1", 60 * number))
    LedgerWriter(database).write(made)
    assert {row.account for row in make_report(database, ROOT, "account", WHOLE, now_utc_ns=END).rows} == set(NAMES)
    for name in NAMES:
        chosen = msgspec.structs.replace(WHOLE, users=(name,), accounts=(name,), partitions=(name,))
        rows = make_report(database, ROOT, "job", chosen, now_utc_ns=END).rows
        assert [(row.user, row.name) for row in rows] == [(name, name)]
        mine = make_report(database, Viewer(uid=1, user=name), "job", WHOLE, now_utc_ns=END).rows
        assert [row.user for row in mine] == [name]


def test_text_that_no_database_can_store_is_cleaned(database: Database) -> None:
    LedgerWriter(database).write([JobRecord(key=key(4), name="a\x00b" + "x" * 2000, user="ada")])
    assert str(one(database, key(4))["name"]).startswith("a\ufffdbxxx")


def test_many_nodes_write_at_once_and_nothing_is_lost(address: str, database: Database) -> None:
    nodes, batches = 6, 5
    shared = [JobRecord(key=key(700), user="ada", device_count=nodes, start_utc_ns=T0)]
    measured = {"user": "ada", "signature": "s", "device_model": MODEL, "ephemeral_bytes": MIB}

    def write(node: int) -> None:
        own = open_database(address)
        writer = LedgerWriter(own)
        for batch in range(batches):
            made: list[Record] = [*shared, *(usage(key(700), f"n{node}", 60 * (batch * 10 + i)) for i in range(10))]
            made += [usage(key(800 + node), f"n{node}", 60 * (batch * 10 + i)) for i in range(10)]
            made.append(
                MeasurementRecord(
                    job=key(800 + node), measured_utc_ns=T0 + batch, persistent_bytes=(node + 1) * MIB, **measured
                )
            )
            random.Random(node * 100 + batch).shuffle(made)
            writer.write(made)
        own.close()

    with ThreadPoolExecutor(nodes) as pool:
        list(pool.map(write, range(nodes)))
    with database.reading() as connection:
        counted = {
            name: connection.scalar(select(func.count()).select_from(METADATA.tables[name]))
            for name in ("jobs", "usage", "nodes", "profiles", "profile_runs")
        }
    expected = {"jobs": nodes + 1, "usage": nodes * batches * 20, "nodes": nodes, "profiles": 1, "profile_runs": nodes}
    assert counted == expected
    found = find_profile(database, ProfileKey(cluster="alpha", user="ada", signature="s", device_model=MODEL))
    assert found is not None
    assert (found.persistent_bytes, found.run_count) == (nodes * MIB, nodes)


def test_a_batch_is_written_whole_or_not_at_all(database: Database) -> None:
    before = dump(database)
    broken = msgspec.structs.replace(usage(key(5), "n1", 0), iteration_count=2**63)
    with pytest.raises(Exception):  # noqa: B017, PT011 - each driver refuses it in its own way
        LedgerWriter(database).write([JobRecord(key=key(5)), usage(key(5), "n1", 60), broken])
    assert dump(database) == before


def test_a_roll_up_keeps_the_sums_of_whole_days_and_ignores_replays(database: Database) -> None:
    LedgerWriter(database).write(records())
    before = make_report(database, ROOT, "job", WHOLE, now_utc_ns=END)
    before_count, after_count = retention.roll_up(database, END + 86_400 * S)
    assert after_count < before_count
    rolled = dump(database)
    late_count = LedgerWriter(database).write(records())
    assert late_count > 0
    assert dump(database)["usage"] == rolled["usage"]
    after = make_report(database, ROOT, "job", WHOLE, now_utc_ns=END)
    for name in ("held_ns", "busy_ns", "occupied_ns", "known_alone_ns", "peak_mib_ms", "iteration_count"):
        assert getattr(after.total, name) == getattr(before.total, name)


def test_a_purge_deletes_what_it_announces_and_a_replay_does_not_restore_it(database: Database) -> None:
    LedgerWriter(database).write(records())
    edge = T0 + 2000 * S
    would = retention.purge(database, edge, is_dry=True)
    done = retention.purge(database, edge)
    assert would["jobs"] == done["jobs"] == 1
    assert would["usage"] == done["usage"]
    LedgerWriter(database).write(records())
    rows = make_report(database, ROOT, "job", WHOLE, now_utc_ns=END).rows
    assert [(row.job, row.restart_count) for row in rows if row.start_utc_ns is not None and row.job == "201"] == [
        ("201", 1)
    ]
    assert find_profile(database, ProfileKey(cluster="alpha", user="ada", signature="cnn", device_model=MODEL))
