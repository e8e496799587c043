"""The Gantt chart of lanes: a job's stays become bars, with one row per job that takes turns in a lane."""

from accounting.reports.values import LaneSpan
from cli.acct.page.lanes import JOIN_GAP_NS, _joined, _short_names, _tracks

SECOND_NS = 1_000_000_000


def span(lane, job, start_s, end_s, device="HOST-aaaa-1"):
    return LaneSpan(
        node="n1", device=device, lane=lane, job=job, user="ada", start_utc_ns=int(start_s * SECOND_NS),
        end_utc_ns=int(end_s * SECOND_NS), lane_bytes=1, iteration_count=1,
    )  # fmt: skip


def test_pieces_of_a_stay_become_one_bar_and_a_real_gap_is_kept():
    spans = [span(1, "7", 0, 2), span(1, "8", 0, 2), span(1, "7", 2.1, 4), span(1, "7", 6, 8)]
    assert [(one.job, one.start_utc_ns // SECOND_NS, one.end_utc_ns // SECOND_NS) for one in _joined(spans)] == [
        ("7", 0, 4),
        ("8", 0, 2),
        ("7", 6, 8),
    ]
    assert JOIN_GAP_NS < SECOND_NS


def test_other_users_jobs_are_not_joined():
    assert len(_joined([span(1, "", 0, 2), span(1, "", 2, 4)])) == 2


def test_jobs_that_take_turns_in_a_lane_have_separate_rows():
    rows = _tracks([span(1, "7", 0, 4), span(1, "8", 1, 3), span(2, "9", 0, 1)])
    assert rows == ["n1 HOST-aaaa lane 1", "n1 HOST-aaaa lane 1 (2)", "n1 HOST-aaaa lane 2"]


def test_a_short_device_name_is_used_only_if_it_is_unique():
    alike = [span(1, "7", 0, 1, "GPU-aaaa-1"), span(1, "7", 0, 1, "GPU-aaaa-2")]
    assert _short_names(alike) == {"GPU-aaaa-1": "GPU-aaaa-1", "GPU-aaaa-2": "GPU-aaaa-2"}
