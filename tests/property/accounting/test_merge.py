"""The stored job does not depend on the order, number or batching of its records."""

from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from accounting.ingest.jobs import merge_job, row_of
from accounting.ingest.usage import merge_session
from accounting.records import JobKey, JobRecord, Source

KEY = JobKey(cluster="alpha", job_id=1)
MOMENTS = st.none() | st.integers(0, 10**6)


def node_record(start: int | None, end: int | None, suspended: int) -> JobRecord:
    return JobRecord(
        key=KEY, user="ada", state="RUNNING" if end is None else "COMPLETED", start_utc_ns=start, start_mono_ns=start,
        end_utc_ns=end, end_mono_ns=end, suspended_ns=suspended,
    )  # fmt: skip


NODE_RECORDS = st.builds(node_record, st.integers(0, 10**6), MOMENTS, st.integers(0, 100))
# Slurm reports the same about a job each time.
SLURM_RECORD = JobRecord(
    key=KEY, source=Source.SLURM, user="ada", account="x", start_utc_ns=5, end_utc_ns=99, device_count=2, state="FAILED"
)


@given(st.lists(NODE_RECORDS, min_size=1, max_size=6), st.booleans(), st.randoms())
def test_a_job_is_the_same_in_any_order_and_with_repeats(
    parts: list[JobRecord], with_slurm: bool, dice: st.DrawFn
) -> None:
    records = [*parts, SLURM_RECORD] if with_slurm else parts
    rows = [row_of(record, 1) for record in records]
    expected = reduce(merge_job, rows)
    shuffled = rows + rows[: len(rows) // 2]
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    assert reduce(merge_job, shuffled) == expected
    if with_slurm:
        assert (expected["start_utc_ns"], expected["elapsed_ns"], expected["device_count"]) == (5, 94, 2)
    assert expected["elapsed_ns"] is None or expected["elapsed_ns"] >= 0


SESSIONS = st.fixed_dictionaries(
    {
        "iteration_count": st.integers(0, 9),
        "handover_count": st.integers(0, 9),
        "persistent_bytes_max": st.integers(0, 9),
        "ephemeral_bytes_max": st.integers(0, 9),
        "end_utc_ns": MOMENTS,
        "end_mono_ns": MOMENTS,
        "is_gated": st.booleans(),
        "end_reason": st.sampled_from(["", "bye", "killed"]),
        "incarnation_id": st.integers(1, 3),
    }
)


@given(st.lists(SESSIONS, min_size=1, max_size=6), st.randoms())
def test_a_session_is_the_same_in_any_order_and_with_repeats(rows: list[dict[str, object]], dice: st.DrawFn) -> None:
    expected = reduce(merge_session, rows)
    shuffled = rows + rows
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    assert reduce(merge_session, shuffled) == expected
