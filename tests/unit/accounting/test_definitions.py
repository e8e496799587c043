"""The ratios on simple cases, and what a user sees of other users' jobs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from accounting.ingest.ledger import LedgerWriter
from accounting.meter import Activity, DeviceMeter, MeteredDevice
from accounting.records import DeviceRecord, JobRecord, MeasurementRecord, Record
from accounting.reports.charts import make_charts
from accounting.reports.measures import Measures, percentile
from accounting.reports.report import make_report
from accounting.reports.selection import Selection
from accounting.storage import schema
from accounting.storage.database import Database, open_database
from accounting.viewer import Viewer
from nodedaemon.wire.envelope import NotPermittedError
from tests.support.scenario import END, MIB, MODEL, T0, S, key, records

ROOT = Viewer(uid=0, user="root", is_operator=True)
WHOLE = Selection(start_utc_ns=0, end_utc_ns=END)
RUN, WAIT, OUT = Activity.RUNNING, Activity.WAITING, Activity.OUTSIDE


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = open_database(f"sqlite:///{tmp_path}/salus.db")
    schema.upgrade(opened)
    yield opened
    opened.close()


def job_records(jobs: int, seconds: int) -> list[Record]:
    """The device, the jobs and a profile with a solo iteration time of one second."""
    made: list[Record] = [
        DeviceRecord(cluster="alpha", node="n1", device="d0", model=MODEL, capacity_bytes=1024 * MIB, seen_utc_ns=T0)
    ]
    for number in range(jobs):
        made.append(
            JobRecord(
                key=key(number), user="ada", account="a", signature="sig", start_utc_ns=T0, start_mono_ns=0,
                end_utc_ns=T0 + seconds * S, end_mono_ns=seconds * S,
            )
        )  # fmt: skip
        made.append(
            MeasurementRecord(
                job=key(number), user="ada", signature="sig", device_model=MODEL, measured_utc_ns=T0 + S,
                persistent_bytes=MIB, ephemeral_bytes=MIB, solo_iteration_ns=S,
            )
        )  # fmt: skip
    return made


def meter(jobs: int) -> DeviceMeter:
    made = DeviceMeter(MeteredDevice("alpha", "n1", "d0", "i1", 1024 * MIB), now_utc_ns=T0, now_mono_ns=0)
    for number in range(jobs):
        made.join(number, key(number), 0, charge=1)
    return made


def total(database: Database, made: list[Record]) -> Measures:
    LedgerWriter(database).write(made)
    return make_report(database, ROOT, "cluster", WHOLE, now_utc_ns=END).total


def test_four_jobs_that_only_take_turns_gain_nothing(database: Database) -> None:
    device = meter(4)
    for number in range(4):
        device.change(number, WAIT, 0)
    for turn in range(40):
        device.change(turn % 4, RUN, turn * S)
        device.change(turn % 4, WAIT, (turn + 1) * S, iteration_count=1)
    found = total(database, [*job_records(4, 40), *device.close(T0 + 40 * S, 40 * S)])
    assert found.held_ns == 160 * S
    assert found.sharing_gain == 1.0
    assert found.slowdown == 4.0
    assert (found.efficiency, found.jain) == (1.0, 1.0)


@pytest.mark.parametrize("count", [10**6, 2**40, 2**62])
def test_no_number_of_iterations_makes_the_gain_larger_than_the_number_of_jobs(database: Database, count: int) -> None:
    # A job reports its iterations itself. This many of one second each did not happen in 30 seconds.
    device = meter(2)
    for number in range(2):
        device.change(number, RUN, 0)
    device.change(0, OUT, 30 * S, iteration_count=count)
    device.change(1, OUT, 30 * S, iteration_count=30)
    found = total(database, [*job_records(2, 30), *device.close(T0 + 30 * S, 30 * S)])
    assert (found.sharing_gain, found.slowdown) == (2.0, 1.0)
    part = Selection(start_utc_ns=T0 + 10 * S, end_utc_ns=T0 + 20 * S)
    assert make_report(database, ROOT, "cluster", part, now_utc_ns=END).total.sharing_gain == 2.0


def test_lanes_that_run_in_parallel_gain_their_speed_up(database: Database) -> None:
    # Two jobs run at once, each as fast as alone: twice the work in the same time.
    device = meter(2)
    for number in range(2):
        device.change(number, RUN, 0)
    for number in range(2):
        device.change(number, OUT, 30 * S, iteration_count=30)
    found = total(database, [*job_records(2, 30), *device.close(T0 + 30 * S, 30 * S)])
    assert (found.sharing_gain, found.slowdown) == (2.0, 1.0)


def test_idle_servers_gain_in_proportion_to_their_number(database: Database) -> None:
    device = meter(42)
    found = total(database, [*job_records(42, 60), *device.close(T0 + 60 * S, 60 * S)])
    assert found.sharing_gain == pytest.approx(42.0)
    assert found.efficiency == 0.0
    assert found.occupied_ns == 60 * S


def test_a_ratio_without_a_denominator_is_not_zero() -> None:
    nothing = Measures()
    for name in ("efficiency", "alone_ns", "sharing_gain", "slowdown", "jain", "queue_wait_mean_ns"):
        assert getattr(nothing, name) is None


@pytest.mark.parametrize(
    ("counts", "part", "value"),
    [
        ([], 0.5, None),
        ([(7, 1)], 0.95, 7),
        ([(1, 1), (2, 1)], 0.5, 1),
        ([(1, 95), (9, 5)], 0.95, 1),
        ([(1, 94), (9, 6)], 0.95, 9),
    ],
)
def test_percentiles_are_by_nearest_rank(counts: list[tuple[int, int]], part: float, value: int | None) -> None:
    assert percentile(counts, part) == value


def test_a_user_sees_other_users_jobs_without_names(database: Database) -> None:
    LedgerWriter(database).write(records())
    ben = Viewer(uid=1002, user="ben")
    figures = make_charts(database, ben, WHOLE, now_utc_ns=END)
    assert {(span.user, span.job) for span in figures.spans} == {("", ""), ("ben", "102")}
    assert {wait.user for wait in figures.waits} == {"ben"}
    assert {change.key.user for change in figures.changes} == {"ben"}
    assert {mark.job for mark in figures.marks} <= {"", "102"}
    report = make_report(database, ben, "summary", WHOLE, now_utc_ns=END)
    assert {row.user for row in report.rows if row.depth} == {"ben"}
    assert report.summary.refused_count == 0
    for forbidden in (Selection(start_utc_ns=0, end_utc_ns=END, is_for_all=True), Selection(
        start_utc_ns=0, end_utc_ns=END, users=("ada",)
    )):  # fmt: skip
        with pytest.raises(NotPermittedError, match="ben is not an operator"):
            make_report(database, ben, "summary", forbidden, now_utc_ns=END)
