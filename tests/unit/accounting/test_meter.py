"""The meter on hand-computed cases, and conservation of time on random sequences of events."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from accounting.meter import Activity, DeviceMeter, MeteredDevice
from accounting.records import DeviceUsageRecord, JobKey, Record, UsageRecord

MIB = 1 << 20
S = 1_000_000_000
UTC = 1_790_000_000 * S
RUN, WAIT, OUT, STOP = Activity.RUNNING, Activity.WAITING, Activity.OUTSIDE, Activity.SUSPENDED


def key(number: int) -> JobKey:
    return JobKey(cluster="alpha", job_id=number)


def meter() -> DeviceMeter:
    return DeviceMeter(MeteredDevice("alpha", "n1", "d0", "i1", 100 * MIB), now_utc_ns=UTC, now_mono_ns=0)


def by_job(records: list[Record]) -> dict[int, UsageRecord]:
    return {record.job.job_id: record for record in records if isinstance(record, UsageRecord)}


def whole(records: list[Record]) -> DeviceUsageRecord:
    return next(record for record in records if isinstance(record, DeviceUsageRecord))


def test_one_iteration_alone_gets_all_of_the_time() -> None:
    device = meter()
    device.join(1, key(1), 0, charge=4)
    device.change(1, RUN, 2 * S)
    device.change(1, OUT, 5 * S, iteration_count=3)
    usage = by_job(device.close(UTC + 10 * S, 10 * S))[1]
    assert (usage.busy_ns, usage.occupied_ns, usage.outside_ns) == (3 * S, 10 * S, 7 * S)
    assert usage.iteration_count == 3


def test_three_running_iterations_get_a_third_each() -> None:
    device = meter()
    for number in (1, 2, 3):
        device.join(number, key(number), 0, charge=number)
        device.change(number, RUN, 0)
    usages = by_job(device.close(UTC, 10 * S))
    assert sorted(usage.busy_ns for usage in usages.values()) == [3_333_333_333, 3_333_333_333, 3_333_333_334]
    assert [usage.running_ns for usage in usages.values()] == [10 * S] * 3


def test_idle_time_is_split_by_charge() -> None:
    device = meter()
    device.join(1, key(1), 0, charge=1)
    device.join(2, key(2), 0, charge=3)
    usages = by_job(device.close(UTC, 8 * S))
    assert (usages[1].busy_ns, usages[1].occupied_ns) == (0, 2 * S)
    assert (usages[2].busy_ns, usages[2].occupied_ns) == (0, 6 * S)


def test_four_jobs_in_turn_occupy_a_quarter_each_and_wait_the_rest_of_the_time() -> None:
    device = meter()
    for number in range(4):
        device.join(number, key(number), 0, charge=5)
        device.change(number, WAIT, 0)
    for turn in range(40):
        device.change(turn % 4, RUN, turn * S)
        device.change(turn % 4, WAIT, (turn + 1) * S, iteration_count=1)
    for usage in by_job(device.close(UTC, 40 * S)).values():
        assert usage.busy_ns == usage.occupied_ns == usage.entitled_ns == 10 * S
        assert (usage.wait_ns, usage.iteration_count, usage.outside_ns) == (30 * S, 10, 0)


def test_a_suspended_job_is_present_and_its_time_is_counted_separately() -> None:
    device = meter()
    device.join(1, key(1), 0, charge=1)
    device.change(1, STOP, 4 * S)
    usage = by_job(device.close(UTC, 10 * S))[1]
    assert (usage.suspended_ns, usage.outside_ns, usage.occupied_ns) == (6 * S, 4 * S, 10 * S)


def test_memory_saved_is_the_peaks_minus_what_the_lane_held() -> None:
    device = meter()
    device.set_lane(7, 40 * MIB, 0)
    for number in (1, 2):
        device.join(number, key(number), 0, charge=1)
        device.set_memory(number, 10 * MIB, 40 * MIB, 0)
        device.bind(number, 7, 0)
    records = device.close(UTC, 10 * S)
    for usage in by_job(records).values():
        assert (usage.peak_mib_ms, usage.held_mib_ms) == (50 * 10_000, 30 * 10_000)
    assert (whole(records).persistent_bytes_mean, whole(records).lane_bytes_mean) == (20 * MIB, 40 * MIB)


def test_weights_define_entitlement_and_a_job_counts_once() -> None:
    device = meter()
    device.join(1, key(1), 0, charge=1, weight=3)
    device.join(2, key(1), 0, charge=1, weight=3)
    device.join(3, key(2), 0, charge=1)
    for session in (1, 2, 3):
        device.change(session, WAIT, 0)
    usages = by_job(device.close(UTC, 8 * S))
    assert (usages[1].entitled_ns, usages[2].entitled_ns) == (6 * S, 2 * S)
    assert usages[1].present_ns == 8 * S


def test_the_next_interval_begins_where_the_last_ended() -> None:
    device = meter()
    device.join(1, key(1), 0, charge=1)
    device.change(1, RUN, 0)
    first = by_job(device.close(UTC + 6 * S, 6 * S))[1]
    device.leave(1, 8 * S)
    second = by_job(device.close(UTC + 10 * S, 10 * S))[1]
    assert first.start_mono_ns + first.span_ns == second.start_mono_ns
    assert (second.start_utc_ns, second.busy_ns, second.present_ns) == (UTC + 6 * S, 2 * S, 2 * S)
    assert by_job(device.close(UTC + 20 * S, 20 * S)) == {}


# Sequences of (nanoseconds that pass, session, action).
SEQUENCES = st.lists(
    st.tuples(
        st.integers(0, 10**10), st.integers(0, 7), st.sampled_from(["run", "wait", "out", "stop", "leave", "close"])
    ),
    max_size=60,
)


@given(SEQUENCES, st.lists(st.integers(1, 10**6), min_size=8, max_size=8))
def test_every_nanosecond_is_counted_once(sequence: list[tuple[int, int, str]], charges: list[int]) -> None:
    device, now_ns, present = meter(), 0, set[int]()
    present_ns = running_ns = 0
    running: set[int] = set()
    records: list[Record] = []
    for passed_ns, session, action in [*sequence, (1, 0, "close")]:
        now_ns += passed_ns
        present_ns += passed_ns if present else 0
        running_ns += passed_ns if running else 0
        if action == "close":
            records += device.close(UTC + now_ns, now_ns)
            continue
        if session not in present and action != "leave":
            device.join(session, key(session // 2), now_ns, charge=charges[session // 2 * 2], weight=1 + session // 4)
            present.add(session)
        if session not in present:
            continue
        _apply(device, session, action, now_ns)
        (running.add if action == "run" else running.discard)(session)
        if action == "leave":
            present.discard(session)
    usages = [record for record in records if isinstance(record, UsageRecord)]
    assert sum(usage.occupied_ns for usage in usages) == present_ns
    assert sum(usage.busy_ns for usage in usages) == running_ns
    assert sum(record.present_ns for record in records if isinstance(record, DeviceUsageRecord)) == present_ns
    for usage in usages:
        assert 0 <= usage.busy_ns <= usage.occupied_ns
        parts = usage.running_ns + usage.wait_ns + usage.suspended_ns + usage.outside_ns
        assert parts == usage.present_ns <= usage.span_ns
        assert usage.busy_ns <= usage.running_ns + 1


def _apply(device: DeviceMeter, session: int, action: str, now_ns: int) -> None:
    actions: dict[str, Callable[[], None]] = {
        "run": lambda: device.change(session, RUN, now_ns),
        "wait": lambda: device.change(session, WAIT, now_ns),
        "out": lambda: device.change(session, OUT, now_ns),
        "stop": lambda: device.change(session, STOP, now_ns),
        "leave": lambda: device.leave(session, now_ns),
    }
    actions[action]()


def test_nothing_is_kept_of_sessions_and_lanes_that_are_gone() -> None:
    device = meter()
    for number in range(1, 50):
        device.join(number, key(number), number * S, charge=1)
        device.set_lane(number, MIB, number * S)
        device.bind(number, number, number * S)
        # The memory is freed before the session leaves, as when a lane is parked.
        device.set_lane(number, 0, number * S)
        device.leave(number, number * S)
    device.close(UTC, 60 * S)
    assert {
        name: kept for name, kept in vars(device).items() if name in ("_sessions", "_jobs", "_lanes") and kept
    } == {}
