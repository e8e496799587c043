"""Bins add up to what was recorded, and no bin exceeds the time of its devices."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from accounting.meter import Activity, DeviceMeter, MeteredDevice
from accounting.records import JobKey, UsageRecord
from accounting.reports.bins import BinGrid, merged_stretches

ACTIVITIES = st.sampled_from(list(Activity))
#: Nanoseconds that pass, device, session, its new activity (None: it joins or leaves), whether the interval ends then.
STEPS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 1), st.integers(1, 4), st.none() | ACTIVITIES, st.booleans()),
    min_size=1,
    max_size=40,
)


def recorded(steps: list[tuple[int, int, int, Activity | None, bool]]) -> list[UsageRecord]:
    """What the meters of two devices write while sessions join and leave."""
    meters = [DeviceMeter(MeteredDevice("c", "n", f"d{n}", "i", 1), now_utc_ns=0, now_mono_ns=0) for n in (0, 1)]
    there: set[tuple[int, int]] = set()
    made = []
    now_ns = 0
    for passed_ns, device, session, activity, is_closed in steps:
        now_ns += passed_ns
        meter, who = meters[device], (device, session)
        if activity is not None and who in there:
            meter.change(session, activity, now_ns)
        elif who in there:
            meter.leave(session, now_ns)
            there.discard(who)
        else:
            meter.join(session, JobKey(cluster="c", job_id=session), now_ns, charge=session)
            there.add(who)
        if is_closed:
            made += meter.close(now_ns, now_ns)
    for meter in meters:
        made += meter.close(now_ns, now_ns)
    return [record for record in made if isinstance(record, UsageRecord)]


@given(STEPS, st.integers(0, 300), st.integers(1, 400), st.integers(1, 90), st.sets(st.integers(1, 4)))
def test_bins_add_up_to_the_records_and_never_exceed_a_device(
    steps: list[tuple[int, int, int, Activity | None, bool]], start_ns: int, width_ns: int, bin_ns: int, left: set[int]
) -> None:
    records = [record for record in recorded(steps) if record.job.job_id not in left]
    end_ns = max((record.start_utc_ns + record.span_ns for record in records), default=0)
    for name in ("busy_ns", "occupied_ns"):
        whole, window = BinGrid(0, end_ns + 1, bin_ns), BinGrid(start_ns, start_ns + width_ns, bin_ns)
        assert sum(_bins(records, whole, name).values()) == sum(getattr(record, name) for record in records)
        for grid in (whole, window):
            for (_, number), value_ns in _bins(records, grid, name).items():
                assert 0 <= number < grid.bin_count
                assert 0 <= value_ns <= grid.span_of(number)


def _bins(records: list[UsageRecord], grid: BinGrid, name: str) -> dict[tuple[str, int], int]:
    sums: dict[tuple[str, int], int] = defaultdict(int)
    for device in ("d0", "d1"):
        mine = sorted((r for r in records if r.device == device), key=lambda record: record.start_utc_ns)
        rows = [(0, r.start_utc_ns, r.start_utc_ns + r.span_ns, r.busy_ns, r.occupied_ns) for r in mine]
        for stretch in merged_stretches(rows):
            for number, part in grid.parts(stretch.start_ns, stretch.until_ns, getattr(stretch, name)):
                sums[device, number] += part
    return sums


def test_a_record_that_crosses_an_edge_is_split_to_the_nanosecond() -> None:
    assert list(BinGrid(0, 100, 40).parts(30, 130, 10)) == [(0, 1), (1, 4), (2, 2)]
    assert list(BinGrid(30, 130, 40).parts(30, 130, 10)) == [(0, 4), (1, 4), (2, 2)]


def test_spreading_records_one_by_one_would_exceed_a_device() -> None:
    # One is alone for half of the interval, then both share the device.
    rows = [(1, 0, 60, 45, 45), (1, 30, 60, 15, 15)]
    grid = BinGrid(0, 60, 30)
    apart: dict[int, int] = defaultdict(int)
    for _, start_ns, until_ns, busy_ns, _ in rows:
        for number, part in grid.parts(start_ns, until_ns, busy_ns):
            apart[number] += part
    assert apart[1] > 30
    (together,) = merged_stretches(rows)
    assert list(grid.parts(together.start_ns, together.until_ns, together.busy_ns)) == [(0, 30), (1, 30)]
