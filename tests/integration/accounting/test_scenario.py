"""Every number of the hand-computed hour (tests/support/scenario.py) on each database, exact to the second."""

import itertools

import msgspec
import pytest

from accounting.ingest.ledger import LedgerWriter
from accounting.records import JobRecord, UsageRecord, decode, encode
from accounting.reports import queries
from accounting.reports.charts import make_charts
from accounting.reports.report import ReportKind, make_report
from accounting.reports.selection import JobSelector, Selection
from accounting.reports.values import Report, ReportRow
from accounting.storage.database import Database
from accounting.viewer import Viewer
from tests.support.scenario import END, MIB, T0, S, dump, key, records

ROOT = Viewer(uid=0, user="root", is_operator=True)
DAY = Selection(start_utc_ns=T0 - 86_400 * S, end_utc_ns=END)


@pytest.fixture
def filled(database: Database) -> Database:
    LedgerWriter(database).write(records())
    return database


def report(database: Database, kind: ReportKind = "summary", selection: Selection = DAY, who: Viewer = ROOT) -> Report:
    return make_report(database, who, kind, selection, now_utc_ns=END)


def rows_by(made: Report, *names: str) -> dict[tuple[object, ...], ReportRow]:
    return {tuple(getattr(row, name) for name in names): row for row in made.rows}


def seconds(row: ReportRow, *names: str) -> tuple[float, ...]:
    return tuple(getattr(row.measures, name) / S for name in names)


def test_held_busy_and_occupied_of_each_account_and_user(filled: Database) -> None:
    rows = rows_by(report(filled), "account", "user")
    expected = {
        # held, busy, occupied, suspended
        ("vision", ""): (5400, 2400, 3600, 0),
        ("vision", "ada"): (3600, 1500, 2250, 0),
        ("vision", "ben"): (1800, 900, 1350, 0),
        ("nlp", ""): (2500, 2500, 2800, 300),
        ("nlp", "ada"): (600, 600, 600, 0),
        ("nlp", "cyd"): (1900, 1900, 2200, 300),
    }
    found = {group: seconds(row, "held_ns", "busy_ns", "occupied_ns", "suspended_ns") for group, row in rows.items()}
    assert found == expected
    assert seconds(ReportRow(measures=report(filled).total), "held_ns", "occupied_ns") == (7900, 6400)


def test_a_false_number_of_iterations_breaks_no_report(database: Database) -> None:
    """Times the solo iteration time, it does not fit into 64 bits."""
    batch = records()
    liar = next(place for place, one in enumerate(batch) if isinstance(one, UsageRecord) and one.iteration_count)
    batch[liar] = msgspec.structs.replace(batch[liar], iteration_count=2**62)
    LedgerWriter(database).write(batch)
    for kind in ReportKind:
        for row in report(database, kind).rows:
            assert row.measures.known_alone_ns <= row.measures.known_present_ns


def test_a_tree_has_every_level_of_slurms_accounts_and_sums_at_each(filled: Database) -> None:
    made = make_report(filled, ROOT, "account", DAY, now_utc_ns=END, is_tree=True)
    lines = [(row.depth, row.account, row.user, row.measures.held_ns // S) for row in made.rows]
    assert lines == [
        (0, "nlp", "", 2500),
        (1, "nlp", "ada", 600),
        (1, "nlp", "cyd", 1900),
        (0, "science", "", 5400),
        (1, "images", "", 5400),
        (2, "vision", "", 5400),
        (3, "vision", "ada", 3600),
        (3, "vision", "ben", 1800),
    ]
    assert made.total == report(filled).total
    # A user sees only the accounts above their own jobs.
    ben = make_report(filled, Viewer(uid=7, user="ben"), "account", DAY, now_utc_ns=END, is_tree=True)
    assert [(row.depth, row.account, row.user) for row in ben.rows] == [
        (0, "science", ""), (1, "images", ""), (2, "vision", ""), (3, "vision", "ben")
    ]  # fmt: skip


def test_alone_gain_and_slowdown_are_reported_only_for_known_jobs(filled: Database) -> None:
    rows = rows_by(report(filled, "job"), "job", "restart_count")
    ada, ben, cyd = (rows[job].measures for job in (("101", 0), ("102", 0), ("201", 0)))
    assert (ada.alone_ns, ben.alone_ns, cyd.alone_ns) == (2700 * S, 1500 * S, None)
    assert ada.sharing_gain == pytest.approx(2700 / 2250)
    assert ben.sharing_gain == pytest.approx(1500 / 1350)
    assert (cyd.sharing_gain, cyd.slowdown) == (None, None)
    assert ada.slowdown == pytest.approx(3600 / 2700)
    assert ben.slowdown == pytest.approx(1800 / 1500)
    assert ada.efficiency == pytest.approx(1500 / 2250)


def test_a_requeued_job_counts_each_run_without_its_suspension(filled: Database) -> None:
    rows = rows_by(report(filled, "job"), "job", "restart_count")
    assert seconds(rows["201", 0], "held_ns", "suspended_ns", "queue_wait_ns") == (1000, 0, 50)
    assert seconds(rows["201", 1], "held_ns", "suspended_ns", "queue_wait_ns") == (900, 300, 800)


def test_a_clock_that_jumps_by_an_hour_adds_no_time(filled: Database) -> None:
    row = rows_by(report(filled, "job"), "job")[("301",)]
    assert seconds(row, "held_ns", "busy_ns", "occupied_ns") == (600, 600, 600)


def test_memory_saved_is_what_the_shared_lane_did_not_hold(filled: Database) -> None:
    rows = rows_by(report(filled), "account", "user")
    assert rows["vision", "ada"].measures.memory_saved_mib_ms == 240_000 * 1000
    assert rows["vision", "ben"].measures.memory_saved_mib_ms == 120_000 * 1000


def test_fairness_compares_achieved_with_entitled(filled: Database) -> None:
    rows = rows_by(report(filled), "account", "user")
    shares = (1500 / 1800, 900 / 600)
    assert rows["vision", ""].measures.jain == pytest.approx(sum(shares) ** 2 / (2 * sum(x * x for x in shares)))
    assert rows["nlp", ""].measures.jain == pytest.approx(1.0)


def test_device_time_is_counted_once(filled: Database) -> None:
    rows = rows_by(report(filled, "device"), "device")
    assert seconds(rows[("d0",)], "occupied_ns", "busy_ns") == (3600, 2400)
    assert seconds(rows[("d1",)], "occupied_ns", "busy_ns") == (2800, 2500)
    assert [rows[(device,)].measures.job_count for device in ("d0", "d1")] == [2, 3]


def test_the_bins_add_up_to_the_table_and_never_exceed_the_devices(filled: Database) -> None:
    total = report(filled).total
    for window in (DAY, Selection(start_utc_ns=T0, end_utc_ns=T0 + 3300 * S)):
        figures = make_charts(filled, ROOT, window, now_utc_ns=END)
        assert all(step.measures.busy_ns <= step.measures.occupied_ns <= 2 * step.span_ns for step in figures.bins)
        # One term per job run and device, as in the table.
        assert max(step.measures.share_count for step in figures.bins) <= 3
        for step in figures.memory:
            held = step.persistent_bytes + step.ephemeral_bytes
            assert held + step.free_bytes == pytest.approx(1024 * MIB, abs=4)
    bins = make_charts(filled, ROOT, DAY, now_utc_ns=END).bins
    assert sum(step.measures.busy_ns for step in bins) == total.busy_ns
    assert sum(step.measures.occupied_ns for step in bins) == total.occupied_ns
    assert sum(step.held_ns for step in bins) == total.held_ns


def test_suspended_time_known_only_as_a_total_is_spread_over_the_bins(database: Database) -> None:
    # sacct reports only totals: 1,600 s from start to end, 400 s of them suspended at unknown times.
    job = JobRecord(
        key=key(900), user="ada", account="a", device_count=2, start_utc_ns=T0, start_mono_ns=0,
        end_utc_ns=T0 + 1600 * S, end_mono_ns=1600 * S, suspended_ns=400 * S,
    )  # fmt: skip
    LedgerWriter(database).write([job])
    window = Selection(start_utc_ns=T0, end_utc_ns=T0 + 2400 * S)
    bins = make_charts(database, ROOT, window, now_utc_ns=END).bins
    assert sum(step.held_ns for step in bins) == report(database, selection=window).total.held_ns == 2400 * S
    inside = [step for step in bins if step.start_utc_ns < T0 + 1600 * S]
    assert len(inside) > 100
    assert all(step.held_ns == pytest.approx(1.5 * step.span_ns, rel=1e-6) for step in inside)


def test_profiles_and_clusters_have_their_own_tables(filled: Database) -> None:
    profiles = rows_by(report(filled, "profile"), "user", "signature")
    assert seconds(profiles["ada", "cnn"], "busy_ns") == (1500,)
    assert seconds(rows_by(report(filled, "cluster"), "cluster")[("alpha",)], "held_ns") == (7900,)


def test_the_summary_has_avoided_errors_waits_and_events(filled: Database) -> None:
    summary = report(filled).summary
    assert (summary.refused_count, summary.made_to_wait_count) == (1, 1)
    assert (summary.wait_median_ns, summary.wait_p95_ns) == (100 * S, 800 * S)
    assert (summary.profile_change_count, summary.device_count) == (3, 2)
    assert summary.event_counts == {"overrun": 1, "xid": 1, "clock_stepped": 1}


def test_a_window_counts_only_the_part_inside(filled: Database) -> None:
    # 600..1200: both of d0's jobs run; the intervals 0-1800 and 600-1800 are cut in proportion.
    window = Selection(start_utc_ns=T0 + 600 * S, end_utc_ns=T0 + 1200 * S)
    rows = rows_by(report(filled, "job", window), "job")
    assert seconds(rows[("101",)], "held_ns", "busy_ns") == (600, 300)
    assert seconds(rows[("102",)], "held_ns", "busy_ns") == (600, 450)
    assert seconds(rows[("201",)], "held_ns") == (400,)


def test_suspended_time_is_subtracted_from_the_window_in_which_it_was(filled: Database) -> None:
    window = Selection(start_utc_ns=T0 + 2200 * S, end_utc_ns=T0 + 2500 * S)
    row = rows_by(report(filled, "job", window), "job")[("201",)]
    assert seconds(row, "held_ns", "suspended_ns") == (200, 100)


def test_consecutive_windows_add_up_to_the_whole(filled: Database) -> None:
    cuts = [T0 - 86_400 * S, *(T0 + second * S for second in range(0, 3600, 450)), END]
    parts = [
        report(filled, selection=Selection(start_utc_ns=start, end_utc_ns=end)).total
        for start, end in itertools.pairwise(cuts)
    ]
    whole = report(filled).total
    for name in ("held_ns", "busy_ns", "occupied_ns", "suspended_ns"):
        # Each cut of an interval may lose the fraction of a nanosecond.
        assert abs(sum(getattr(part, name) for part in parts) - getattr(whole, name)) <= 100


@pytest.mark.parametrize("kind", ["summary", "cluster", "device", "job", "profile"])
def test_a_report_read_in_pieces_is_the_same(
    filled: Database, kind: ReportKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = report(filled, kind)
    monkeypatch.setattr(queries, "PIECE_LENGTH", 2)
    assert report(filled, kind) == whole


def test_the_spool_replayed_twice_changes_nothing(filled: Database) -> None:
    before, expected = dump(filled), report(filled)
    for batch in (records(), list(reversed(records())), [decode(encode(record)) for record in records()]):
        LedgerWriter(filled).write(batch)
        assert dump(filled) == before
    assert report(filled) == expected


def test_records_one_by_one_and_in_any_order_give_the_same_report(database: Database) -> None:
    writer = LedgerWriter(database)
    for record in reversed(records()):
        writer.write([record])
    backwards = report(database, "job")
    assert seconds(ReportRow(measures=backwards.total), "held_ns", "occupied_ns") == (7900, 6400)


def test_sessions_are_listed_below_their_jobs(filled: Database) -> None:
    made = make_report(filled, ROOT, "job", DAY, now_utc_ns=END, with_sessions=True)
    assert [row.job for row in made.rows if row.job.startswith("101")] == ["101", "101.s1"]


def test_a_report_can_be_limited_to_one_job(filled: Database) -> None:
    selection = Selection(start_utc_ns=DAY.start_utc_ns, end_utc_ns=END, jobs=(JobSelector(job_id=102),))
    assert [row.job for row in report(filled, "job", selection).rows] == ["102"]


def test_a_profile_has_the_largest_measured_memory(filled: Database) -> None:
    from accounting.profiles import ProfileKey, find_profile

    found = find_profile(filled, ProfileKey(cluster="alpha", user="ada", signature="cnn", device_model="Tester 1G"))
    assert found is not None
    assert (found.persistent_bytes, found.ephemeral_bytes, found.version) == (100 * MIB, 400 * MIB, 2)
    assert (found.solo_iteration_ns, found.run_count) == (S, 1)
