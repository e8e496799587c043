"""The spool keeps its bound, drops by value, survives damage, and returns a batch until it is finished."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodedaemon.service.journal.record_file import RecordWriter
from nodedaemon.service.usage import spool as spool_module
from nodedaemon.service.usage.spool import RecordValue, Spool


def drain(spool):
    seen = []
    while (batch := spool.next_batch()) is not None:
        seen.extend(batch.payloads)
        spool.finish(batch)
    return seen


def test_a_batch_is_returned_again_after_a_crash_until_it_is_finished(tmp_path):
    spool = Spool(tmp_path)
    for number in range(5):
        spool.append(RecordValue.COMPLETION, b"%d" % number)
    assert spool.next_batch().payloads == (b"0", b"1", b"2", b"3", b"4")
    again = Spool(tmp_path)
    assert again.record_count == 5
    assert drain(again) == [b"0", b"1", b"2", b"3", b"4"]
    assert Spool(tmp_path).record_count == 0


def test_a_full_spool_drops_readings_first_and_keeps_completions(tmp_path):
    spool = Spool(tmp_path, bytes_max=4000, segment_bytes_max=400)
    for number in range(100):
        spool.append(RecordValue.READING, b"r%03d" % number + b"." * 40)
        spool.append(RecordValue.COMPLETION, b"c%03d" % number)
    kept = drain(spool)
    assert [payload for payload in kept if payload.startswith(b"c")] == [b"c%03d" % number for number in range(100)]
    assert spool.dropped[RecordValue.READING] > 0
    assert spool.dropped[RecordValue.COMPLETION] == 0
    readings = [payload for payload in kept if payload.startswith(b"r")]
    assert len(readings) + spool.dropped[RecordValue.READING] == 100


@given(
    flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), min_size=1, max_size=5),
    cut=st.integers(0, 60),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_flipped_and_cut_bytes_lose_only_the_records_they_hit(tmp_path_factory, flips, cut):
    directory = tmp_path_factory.mktemp("spool")
    spool = Spool(directory)
    payloads = [b"record %d " % number * 3 for number in range(20)]
    for payload in payloads:
        spool.append(RecordValue.START, payload)
    spool.close()
    path = next(directory.iterdir())
    content = bytearray(path.read_bytes())
    for place, mask in flips:
        content[place % len(content)] ^= mask
    del content[len(content) - cut :]
    path.write_bytes(content)
    again = Spool(directory)
    kept = drain(again)
    assert set(kept) <= set(payloads)
    hit_max = len(flips) + cut // 20 + 1
    assert len(kept) >= len(payloads) - 2 * hit_max


def test_no_record_is_lost_on_a_full_disk_that_gets_space_again(tmp_path, monkeypatch):
    spool = Spool(tmp_path)
    spool.append(RecordValue.COMPLETION, b"before")
    real = RecordWriter.append

    def full(self, payload):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RecordWriter, "append", full)
    for number in range(10):
        spool.append(RecordValue.COMPLETION, b"%d" % number)
    assert "No space left" in spool.fault
    assert spool.held_count == 10
    monkeypatch.setattr(RecordWriter, "append", real)
    spool.append(RecordValue.COMPLETION, b"after")
    assert spool.fault == ""
    assert drain(spool) == [b"before", *[b"%d" % number for number in range(10)], b"after"]


def test_records_in_memory_are_bounded_and_dropped_by_value(tmp_path, monkeypatch):
    monkeypatch.setattr(spool_module, "HELD_RECORDS_MAX", 4)
    monkeypatch.setattr(RecordWriter, "append", lambda *_: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
    spool = Spool(tmp_path)
    for number in range(4):
        spool.append(RecordValue.READING, b"r%d" % number)
        spool.append(RecordValue.COMPLETION, b"c%d" % number)
    assert spool.held_count == 4
    assert spool.dropped == {RecordValue.READING: 4}


def test_a_half_written_record_is_truncated(tmp_path, monkeypatch):
    writer = RecordWriter(tmp_path / "file")
    writer.append(b"one")
    size = writer.size_bytes
    monkeypatch.setattr("os.write", lambda fd, whole: len(whole) // 2)
    with pytest.raises(OSError, match="space"):
        writer.append(b"two")
    assert (tmp_path / "file").stat().st_size == size
