"""The journal returns what was written, up to the first damage, and never a state that did not exist."""

import pickle

import msgspec
import pytest

from nodedaemon.core.engine import Engine
from nodedaemon.core.errors import OperatingError, RequestError
from nodedaemon.core.events import DeviceAdded, GrantReturned, GrantWanted, SessionArrived
from nodedaemon.core.state.frozen import FORMAT, freeze
from nodedaemon.core.types import DeviceId, DeviceLimits, Domain, Epoch, FaultAction, JobClass, JobId, SessionId
from nodedaemon.service.journal.dispatcher import Dispatcher, freeze_engine, replay, thaw_engine
from nodedaemon.service.journal.record_file import RecordWriter
from nodedaemon.service.journal.segments import (
    EventRecord,
    Head,
    Journal,
    NoteRecord,
    decode_event,
    read_journal,
    segment_paths,
)
from nodedaemon.service.journal.state import ProcessFacts, SessionNote, ShellState
from tests.support.engine_world import World

EVENTS = [
    DeviceAdded(DeviceId("HOST-1"), DeviceLimits(1 << 30, policy="priority", on_hang=FaultAction.KILL)),
    SessionArrived(SessionId(1), DeviceId("HOST-1"), JobId("7"), Domain("user:ada"), 1, 2, JobClass.HIGH, 3, None),
    GrantWanted(SessionId(1)),
    GrantReturned(SessionId(1), Epoch(4), 3, 1, False, Epoch(9)),
]


def make(directory, **options):
    journal = Journal(directory, "0.1.0", "boot-1", **options)
    segment = journal.recover()
    journal.begin(lambda: (b"engine", b"shell"))
    return journal, segment


def write_events(journal):
    for number, event in enumerate(EVENTS):
        journal.append_event(event, number)
        journal.append_note(b"note %d" % number)


def events_of(segment):
    return [(decode_event(one), one.now_ns) for one in segment.records if isinstance(one, EventRecord)]


def test_events_and_notes_are_read_back_in_order_with_their_times(tmp_path):
    journal, nothing = make(tmp_path)
    assert nothing is None
    write_events(journal)
    journal.close()
    _, segment = make(tmp_path)
    assert events_of(segment) == [(event, number) for number, event in enumerate(EVENTS)]
    assert (segment.snapshot.engine, segment.snapshot.shell) == (b"engine", b"shell")
    assert [r.payload for r in segment.records if isinstance(r, NoteRecord)] == [b"note %d" % n for n in range(4)]


@pytest.mark.parametrize(("release", "boot", "is_used"), [("0.2.0", "boot-1", True), ("0.1.0", "boot-2", False)])
def test_the_state_of_another_release_is_used_and_that_of_another_boot_is_not(tmp_path, release, boot, is_used):
    journal, _ = make(tmp_path)
    write_events(journal)
    journal.close()
    other = Journal(tmp_path, release, boot)
    assert (other.recover() is not None) is is_used
    assert other.refusal == ""


def test_a_segment_of_another_format_is_set_aside_with_a_clear_message_and_never_decoded(tmp_path):
    writer = RecordWriter(tmp_path / "journal.000003")
    writer.append(msgspec.msgpack.encode(Head(1, "0.0.9", "boot-1", 3)))
    writer.append(pickle.dumps(Trap(str(tmp_path / "run"))))
    writer.close()
    journal, segment = make(tmp_path)
    assert segment is None
    assert journal.refusal == "journal.000003: format 1 of release 0.0.9; this release reads format 3"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal.000003.format", "journal.000004"]


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_an_ended_journal_holds_a_snapshot_and_no_events(tmp_path):
    journal, _ = make(tmp_path)
    write_events(journal)
    journal.end()
    _, segment = make(tmp_path)
    assert segment.records == []
    assert segment.snapshot.engine == b"engine"


def make_engine():
    world = World(DeviceLimits(1 << 30, service_half_life_ns=3_000))
    for session in (1, 2, 3):
        world.arrive(session, 50, 200)
        world.confirm_all()
        world.want(session)
        world.wait(10_000_000)
    return world.engine


def test_a_thawed_engine_equals_the_frozen_one():
    engine = make_engine()
    thawed = thaw_engine(freeze_engine(engine))
    assert freeze(thawed) == freeze(engine)
    assert thawed.snapshot() == engine.snapshot()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (f'"format":{FORMAT}'.encode(), b'"format":1'),
        (b'"holder":1', b'"holder":9'),
        (b'"arrivals":[]', b'"arrivals":[77]'),
        (b'"job_class":1', b'"job_class":"x"'),
        (b'"state":"', b'"state":"un'),
        (b"{", b"["),
        (b'"persistent_bytes":', b'"persistent_bytes":1'),
    ],
)
def test_a_snapshot_that_was_tampered_with_is_refused(old, new):
    payload = freeze_engine(make_engine())
    assert old in payload
    with pytest.raises(OperatingError, match=r"snapshot|thaw"):
        thaw_engine(payload.replace(old, new, 1))


def test_a_pickle_is_refused_as_a_snapshot(tmp_path):
    with pytest.raises(OperatingError, match="snapshot"):
        thaw_engine(pickle.dumps(Trap(str(tmp_path / "run"))))
    assert not (tmp_path / "run").exists()


def test_a_torn_tail_loses_only_the_last_record(tmp_path):
    journal, _ = make(tmp_path)
    write_events(journal)
    journal.close()
    path = segment_paths(tmp_path)[-1]
    path.write_bytes(path.read_bytes()[:-3])
    _, segment = make(tmp_path)
    assert [event for event, _ in events_of(segment)] == EVENTS
    assert not list(tmp_path.glob("*.damaged")), "a daemon that is killed may leave a torn record"
    assert len([r for r in segment.records if isinstance(r, NoteRecord)]) == 3


def test_nothing_after_a_damaged_record_is_replayed_and_the_file_is_kept_for_the_admin(tmp_path):
    journal, _ = make(tmp_path)
    write_events(journal)
    journal.close()
    path = segment_paths(tmp_path)[-1]
    content = bytearray(path.read_bytes())
    content[content.index(b"GrantWanted") + 2] ^= 0xFF
    path.write_bytes(content)
    segment = Journal(tmp_path, "0.1.0", "boot-1").recover()
    assert [event for event, _ in events_of(segment)] == EVENTS[:2]
    assert [file.name for file in tmp_path.iterdir()] == [f"{path.name}.damaged"]


def test_a_file_that_is_not_a_journal_is_set_aside_once(tmp_path):
    (tmp_path / "journal.000007").write_bytes(b"garbage" * 100)
    journal, segment = make(tmp_path)
    assert segment is None
    journal.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal.000007.damaged", "journal.000008"]


def test_rotation_keeps_the_number_of_segments_and_every_segment_begins_with_a_snapshot(tmp_path):
    journal, _ = make(tmp_path, segment_bytes_max=300, segments_max=3)
    for number in range(100):
        journal.append_event(GrantWanted(SessionId(number)), number)
        journal.rotate_if_due()
    journal.close()
    segments = read_journal(tmp_path)
    assert len(segments) == 3
    assert segments[-1].head.segment > 5
    assert all(segment.snapshot.engine == b"engine" for segment in segments)
    assert max(path.stat().st_size for path in segment_paths(tmp_path)) < 400


def test_a_segment_with_a_gap_from_a_full_disk_is_never_replayed(tmp_path, monkeypatch):
    journal, _ = make(tmp_path)
    write_events(journal)
    real = RecordWriter.append
    monkeypatch.setattr(RecordWriter, "append", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    monkeypatch.setattr("nodedaemon.service.journal.segments.RETRY_EVENT_COUNT", 2)
    for number in range(5):
        journal.append_event(EVENTS[2], number)
        journal.rotate_if_due()
    assert len(list(tmp_path.glob("*.gap"))) == 1
    assert "No space left" in journal.fault
    assert Journal(tmp_path, "0.1.0", "boot-1").recover() is None
    monkeypatch.setattr(RecordWriter, "append", real)
    for number in range(3):
        journal.append_event(EVENTS[2], number)
        journal.rotate_if_due()
    assert journal.fault == ""
    journal.append_event(EVENTS[2], 99)
    journal.close()
    assert [now for _, now in events_of(read_journal(tmp_path)[-1])][-1] == 99


def test_an_unknown_event_and_a_wrong_field_are_refused_by_name():
    with pytest.raises(OperatingError, match="Wished"):
        decode_event(EventRecord(0, "Wished", {}))
    with pytest.raises(OperatingError, match="GrantWanted"):
        decode_event(EventRecord(0, "GrantWanted", {"session": "one"}))


def test_a_directory_without_a_journal_is_refused(tmp_path):
    with pytest.raises(RequestError, match="no Salus journal segment"):
        read_journal(tmp_path)


def test_a_session_that_was_noted_and_never_arrived_does_not_exist(tmp_path):
    """The daemon was killed between the note and the event: such a session would never be released."""
    dispatcher = Dispatcher(ShellState(Engine()), lambda: 1, Journal(tmp_path, "0", "b"))
    dispatcher.journal.begin(dispatcher.snapshot)
    dispatcher.submit(EVENTS[0])
    for number in (1, 2):
        dispatcher.note(SessionNote(SessionId(number), JobId("7"), DeviceId("HOST-1"), 1, 0, 0, ProcessFacts(5, 5)))
    dispatcher.submit(EVENTS[1])
    dispatcher.journal.close()
    found = replay(Journal(tmp_path, "0", "b").recover())
    assert list(found.state.sessions) == [1]
