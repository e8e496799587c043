"""Reconciliation with sacct: output of sacct 22.05, what is added, what is reported, and that held time then agrees."""

import pytest
from msgspec.structs import replace

from accounting.ingest.ledger import LedgerWriter
from accounting.ingest.reconcile import JobMismatch, read_sacct, reconcile
from accounting.records import JobKey, JobRecord
from accounting.storage.database import Database
from nodedaemon.core.errors import RequestError
from tests.support.held_time import sacct_held_s, stored_held_s
from tests.support.scenario import END, T0, S, dump, key, records

HEAD = (
    "JobIDRaw|JobID|Cluster|User|UID|Account|Partition|QOS|JobName|State|ExitCode|Submit|Eligible|Start|End|ElapsedRaw|"
    "Suspended|AllocTRES|ReqTRES|AdminComment"
)
E0 = T0 // S


def line(job: str, start: int, end: int | str, elapsed: int, suspended: str = "00:00:00", **more: str) -> str:
    cells = {
        "raw": job, "id": job, "user": "ada", "account": "vision", "state": "COMPLETED", "name": "x",
        "tres": "billing=1,cpu=1,gres/salus=1,gres/shard=97,node=1", "comment": "", **more,
    }  # fmt: skip
    end_text = str(E0 + end) if isinstance(end, int) else end
    return "|".join(
        [
            cells["raw"], cells["id"], "alpha", cells["user"], "1001", cells["account"], "gpu", "normal", cells["name"],
            cells["state"], "0:0", str(E0 + start - 10), str(E0 + start - 5), str(E0 + start), end_text, str(elapsed),
            suspended, cells["tres"], cells["tres"], cells["comment"],
        ]
    )  # fmt: skip


def table(*lines: str) -> str:
    return "\n".join([HEAD, *lines]) + "\n"


WINDOW = (T0 - 3600 * S, END)


def test_a_row_is_read_with_its_requeues_numbered() -> None:
    text = table(
        line("201", 1800, 3000, 900, "00:05:00", state="COMPLETED"),
        line("201", 0, 1000, 1000, state="REQUEUED"),
        line("7", 0, 60, 60, id="5_3", comment="JS1:abc salus:1;adm=a17;P=1;S=sig-9 other"),
        line("8", 0, "Unknown", 60, state="RUNNING"),
        line("9", 0, 5, 5, tres="cpu=1,gres/gpu=1"),
    )
    rows = {
        (row.record.key.job_id, row.record.key.restart_count): row for row in read_sacct(text, cluster="alpha").rows
    }
    assert set(rows) == {(201, 0), (201, 1), (7, 0), (8, 0)}
    assert (sacct_held_s(rows[201, 1]), rows[201, 1].record.suspended_ns) == (900, 300 * S)
    assert rows[201, 0].record.state == "REQUEUED"
    array = rows[7, 0].record
    assert (array.array_job_id, array.array_task_id, array.admission, array.signature) == (5, 3, "a17", "sig-9")
    assert rows[8, 0].record.end_utc_ns is None


def test_times_in_the_local_format_and_long_durations_are_read() -> None:
    text = table(line("1", 0, 60, 60, "1-02:03:04").replace(str(E0), "2026-11-01T00:00:00", 1))
    (row,) = read_sacct(text, cluster="alpha").rows
    assert row.record.suspended_ns == 93_784 * S


def test_sacct_output_without_the_needed_columns_is_refused() -> None:
    with pytest.raises(RequestError, match="lacks AllocTRES"):
        read_sacct("JobID|State\n1|X\n", cluster="alpha")


@pytest.mark.parametrize(
    "bad",
    [
        "1|2|3",
        line("666", 0, 5, 5, name="a|b"),
        line("six", 0, 5, 5),
        line("²", 0, 5, 5),
        line(str(2**32), 0, 5, 5),
        line("666", 0, "when", 5),
        line("666", 0, 5, 5).replace("|alpha|", "|beta|"),
    ],
)
def test_a_bad_row_is_skipped_and_counted_and_the_others_are_read(bad: str) -> None:
    found = read_sacct(table(line("1", 0, 60, 60), bad, line("2", 0, 60, 60)), cluster="alpha")
    assert ([row.record.key.job_id for row in found.rows], found.bad_count) == ([1, 2], 1)


@pytest.mark.parametrize("separator", ["\v", "\f", "\r", "\x1c", "\x85", "\u2028", "\x1f"])
def test_only_a_newline_ends_a_row(separator: str) -> None:
    name = f"x{separator}y"
    (row,), bad_count = read_sacct(table(line("1", 0, 60, 60, name=name)), cluster="alpha")
    assert (row.record.name, bad_count) == (name, 0)


def test_a_row_that_the_database_does_not_accept_is_skipped(database: Database) -> None:
    rows = read_sacct(table(*(line(str(number), 0, 60, 60) for number in range(1, 8))), cluster="alpha").rows
    # No row from sacct is like this: SQLite refuses the list, and the servers refuse a number of this size.
    value: object = [] if database.dialect == "sqlite" else 2**31
    bad = replace(rows[3], record=replace(rows[3].record, exit_code=value))
    found = reconcile(database, [*rows[:3], bad, *rows[4:]], window=WINDOW)
    assert [run.job_id for run in found.skipped] == [4]
    assert set(stored_held_s(database, [row.record.key for row in rows])) == {
        row.record.key for row in rows if row.record.key.job_id != 4
    }


def test_missing_runs_are_added_and_held_time_agrees_to_the_second(database: Database) -> None:
    LedgerWriter(database).write(records())
    text = table(
        line("101", 0, 3600, 3600),
        line("102", 600, 2400, 1800, user="ben"),
        line("201", 0, 1000, 1000, user="cyd", account="nlp"),
        line("201", 1800, 3000, 900, "00:05:00", user="cyd", account="nlp"),
        line("301", 3100, 3700, 600, account="nlp"),
        line("555", 10, 110, 200, tres="gres/salus=2"),
    )
    rows = read_sacct(text, cluster="alpha").rows
    # sacct says 100 s for the job that we never saw, on two devices.
    found = reconcile(database, rows, window=WINDOW, is_dry=True)
    assert [row.job_id for row in found.filled] == [555]
    assert found.disagreements == []
    reconcile(database, rows, window=WINDOW)
    held = stored_held_s(database, [row.record.key for row in rows])
    expected = {row.record.key: sacct_held_s(row) for row in rows if row.record.key.job_id != 555}
    assert {job: seconds for job, seconds in held.items() if job.job_id != 555} == expected
    assert held[key(555)] == 200


def test_a_difference_is_reported_and_slurms_value_adopted(database: Database) -> None:
    LedgerWriter(database).write([JobRecord(key=key(1), user="eve", start_utc_ns=T0, end_utc_ns=T0 + 75 * S)])
    rows = read_sacct(table(line("1", 1, 61, 60, account="")), cluster="alpha").rows
    found = reconcile(database, rows, window=WINDOW)
    assert found.disagreements == [
        JobMismatch(key(1), "user", "eve", "ada"),
        JobMismatch(key(1), "elapsed seconds", "75", "60"),
    ]
    assert stored_held_s(database, [key(1)]) == {key(1): 60}
    assert reconcile(database, rows, window=WINDOW).disagreements == []


def test_a_difference_of_two_seconds_is_not_reported(database: Database) -> None:
    LedgerWriter(database).write([JobRecord(key=key(1), start_utc_ns=T0, end_utc_ns=T0 + 62 * S)])
    rows = read_sacct(table(line("1", 1, 61, 60)), cluster="alpha").rows
    assert reconcile(database, rows, window=WINDOW, is_dry=True).disagreements == []


def test_runs_that_sacct_does_not_have_are_listed(database: Database) -> None:
    LedgerWriter(database).write(records())
    found = reconcile(database, read_sacct(table(line("101", 0, 3600, 3600)), cluster="alpha").rows, window=WINDOW)
    assert found.unknown == [
        JobKey(cluster="alpha", job_id=job, restart_count=restart) for job, restart in ((102, 0), (201, 0), (201, 1))
    ] + [JobKey(cluster="alpha", job_id=301)]


def test_reconciling_twice_changes_nothing(database: Database) -> None:
    LedgerWriter(database).write(records())
    rows = read_sacct(table(line("101", 0, 3599, 3599), line("777", 0, 5, 5)), cluster="alpha").rows
    reconcile(database, rows, window=WINDOW)
    before = dump(database)
    reconcile(database, rows, window=WINDOW)
    LedgerWriter(database).write(records())
    assert dump(database) == before
