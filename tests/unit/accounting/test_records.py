"""Records pass through the spool unchanged, and invalid bytes raise PeerError."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import records
from accounting.records import JobKey, JobRecord, LaneSpanRecord, UsageRecord
from nodedaemon.core.errors import PeerError

KEY = JobKey(cluster="alpha", job_id=7, restart_count=1)
SESSION = {"job": KEY, "node": "n1", "device": "host-0", "incarnation": "i1", "start_utc_ns": 10, "start_mono_ns": 5}
USAGE = UsageRecord(
    **SESSION, span_ns=60, present_ns=60, running_ns=20, wait_ns=10, suspended_ns=0, outside_ns=30, busy_ns=20,
    occupied_ns=40, entitled_ns=30, iteration_count=3,
)  # fmt: skip


def test_a_record_survives_encoding_and_decoding() -> None:
    for record in (USAGE, JobRecord(key=KEY, name="Ünïcode %_' ; DROP TABLE jobs; --", user="ada")):
        assert records.decode(records.encode(record)) == record


def test_an_end_is_worth_more_than_a_start_and_a_start_more_than_a_sample() -> None:
    start = JobRecord(key=KEY)
    end = JobRecord(key=KEY, end_utc_ns=9)
    sample = LaneSpanRecord(**SESSION, session=1, lane=1, lane_bytes=1, span_ns=1)
    assert records.importance(sample) < records.importance(start) < records.importance(end) == records.importance(USAGE)


@pytest.mark.parametrize("payload", [b"", b"\x00", b"\xc1", records.encode(USAGE)[:-3]])
def test_truncated_or_invalid_bytes_are_a_peer_error(payload: bytes) -> None:
    with pytest.raises(PeerError, match="cannot read a record"):
        records.decode(payload)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_a_peer_error(payload: bytes) -> None:
    with contextlib.suppress(PeerError):
        records.decode(payload)


def test_numbers_that_do_not_fit_a_column_are_refused() -> None:
    forged = msgspec.msgpack.encode({**msgspec.to_builtins(USAGE), "type": "UsageRecord", "busy_ns": -1})
    with pytest.raises(PeerError):
        records.decode(forged)
