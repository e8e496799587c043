"""The journal: every event with its time, written before the engine handles it. A replay gives the same state again.

It consists of segments `journal.NNNNNN` in the state directory. Each begins with a head (format, release, boot) and a
snapshot of the state, so old segments can be deleted: the journal never exceeds `segment_bytes_max` times
`segments_max`. Besides events it holds notes, which only the shell reads (`journal.state`). Writes are not synced: a
killed daemon loses nothing, and no session survives a reboot.

A failed write leaves a gap. A journal with a gap would replay to a state that never existed, so its segment is set
aside at once. The next segment begins with a snapshot as soon as the disk accepts one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec

from nodedaemon.core.errors import OperatingError, RequestError
from nodedaemon.core.events import Event
from nodedaemon.service.journal.record_file import Damage, RecordWriter, read_records

#: Format 1 had pickled snapshots; in format 2 the shell's state repeated the engine's. This release reads neither.
FORMAT = 3
SEGMENT_BYTES_MAX = 32 * 1024 * 1024
SEGMENTS_MAX = 4
#: Events between two attempts to write to a full disk: a busy daemon must not spend its time on failures.
RETRY_EVENT_COUNT = 256

_EVENT_TYPES: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Event)}


class Head(msgspec.Struct, tag="head", frozen=True, array_like=True):
    """First record of a segment: who wrote it. Its layout never changes, so any release can refuse another format."""

    format: int
    release: str
    boot: str
    segment: int


class Snapshot(msgspec.Struct, tag="snapshot", frozen=True, array_like=True):
    """The daemon's state when the segment began; `engine` is empty at the very first start."""

    engine: bytes
    shell: bytes


class EventRecord(msgspec.Struct, tag="event", frozen=True, array_like=True):
    now_ns: int
    name: str
    fields: dict[str, Any]


class NoteRecord(msgspec.Struct, tag="note", frozen=True, array_like=True):
    """A note of the shell; `payload` is its encoding."""

    payload: bytes


Record = Head | Snapshot | EventRecord | NoteRecord
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def encode_event(event: Event, now_ns: int) -> bytes:
    return _encoder.encode(EventRecord(now_ns, type(event).__name__, msgspec.structs.asdict(event)))


def decode_event(record: EventRecord) -> Event:
    """Raises `OperatingError` for an event that this release cannot read."""
    kind = _EVENT_TYPES.get(record.name)
    if kind is None:
        raise OperatingError(f"replay journal: event {record.name}: unknown to this release")
    try:
        return msgspec.convert(record.fields, kind)  # type: ignore[no-any-return]
    except msgspec.ValidationError as error:
        raise OperatingError(f"replay journal: event {record.name}: {error}") from error


@dataclass(slots=True)
class Segment:
    """One segment as read: `records` are those after the snapshot, in order."""

    path: Path
    head: Head
    snapshot: Snapshot
    records: list[EventRecord | NoteRecord]
    damage: Damage


def segment_paths(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("journal.*") if path.suffix[1:].isdigit())


def read_head(path: Path) -> Head | None:
    """The head of a segment; None if it is unreadable."""
    for payload in read_records(path, Damage()):
        try:
            return msgspec.msgpack.decode(payload, type=Head)
        except msgspec.DecodeError:
            return None
    return None


def read_segment(path: Path) -> Segment | None:
    """None if the file does not begin with a head and a snapshot. Nothing after a damaged record is read."""
    head = read_head(path)
    if head is None or head.format != FORMAT:
        return None
    damage = Damage()
    records: list[Record] = []
    for payload in read_records(path, damage):
        if damage.record_count:
            break
        try:
            records.append(_decoder.decode(payload))
        except msgspec.DecodeError:
            damage.note(0, len(payload))
            break
    if len(records) < 2 or not isinstance(records[0], Head) or not isinstance(records[1], Snapshot):
        return None
    tail = [record for record in records[2:] if isinstance(record, EventRecord | NoteRecord)]
    return Segment(path, records[0], records[1], tail, damage)


def read_journal(place: Path) -> list[Segment]:
    """Read a segment file, or all segments of a directory in order; for `salus simulate --replay`."""
    paths = segment_paths(place) if place.is_dir() else [place]
    segments = [segment for path in paths if (segment := read_segment(path)) is not None]
    if not segments:
        raise RequestError(f"read journal: {place}: no Salus journal segment found")
    return segments


class Journal:
    """Writes the journal of one daemon; `recover` first, then `begin`."""

    def __init__(
        self,
        directory: Path,
        release: str,
        boot: str,
        *,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        segments_max: int = SEGMENTS_MAX,
    ) -> None:
        self.directory = directory
        self.fault = ""
        #: Why `recover` returned nothing although there was a segment.
        self.refusal = ""
        self._release = release
        self._boot = boot
        self._segment_bytes_max = segment_bytes_max
        self._segments_max = segments_max
        self._take_snapshot: Callable[[], tuple[bytes, bytes]] | None = None
        self._writer: RecordWriter | None = None
        self._number = 0
        self._skipped = 0

    def recover(self) -> Segment | None:
        """The newest segment, or None if there is none of this boot and format that can be read.

        A torn last record is ignored; a segment with damage before its end is set aside for the admin. A segment of
        another release with the same format is used: its digests show whether a replay gives the same state here.
        """
        paths = segment_paths(self.directory)
        self._number = int(paths[-1].suffix[1:]) if paths else 0
        if not paths:
            return None
        newest = paths[-1]
        head, segment = read_head(newest), read_segment(newest)
        if head is not None and head.boot != self._boot:
            return None
        if segment is None:
            is_foreign = head is not None and head.format != FORMAT
            fault = f"format {head.format} of release {head.release}" if head is not None and is_foreign else "damaged"
            self.refusal = f"{newest.name}: {fault}; this release reads format {FORMAT}"
            set_aside(newest, "format" if is_foreign else "damaged")
            return None
        damage = segment.damage
        if damage.record_count and damage.offset + damage.byte_count < newest.stat().st_size:
            set_aside(newest, "damaged")
        return segment

    def end(self) -> None:
        """Begin a segment that holds a snapshot only, so that the next release has no events to read; then close."""
        if self._writer is not None:
            self._begin_again()
        self.close()

    def begin(self, take_snapshot: Callable[[], tuple[bytes, bytes]]) -> None:
        """Start a new segment with the current state; raises `OperatingError` if the disk does not accept it.

        `take_snapshot` returns the state of the engine and of the shell; every new segment begins with it.
        """
        self._take_snapshot = take_snapshot
        try:
            self._rotate()
        except OSError as error:
            raise OperatingError(
                f"write journal: {self.directory}: {error.strerror}; free or repair the disk"
            ) from error

    def append_event(self, event: Event, now_ns: int) -> None:
        """Write an event before it is handled. Never raises: a failed write leaves a gap, and the node continues."""
        self._append(encode_event(event, now_ns))

    def append_note(self, payload: bytes) -> None:
        self._append(_encoder.encode(NoteRecord(payload)))

    def rotate_if_due(self) -> None:
        """Call this between two events only, when the state is consistent."""
        if self._writer is not None and self._writer.size_bytes < self._segment_bytes_max:
            return
        if self._writer is None and self._skipped < RETRY_EVENT_COUNT:
            return
        self._begin_again()

    def retry(self) -> None:
        """After a gap: try the disk again, even if no events come."""
        if self._writer is None:
            self._begin_again()

    def _begin_again(self) -> None:
        self._skipped = 0
        try:
            self._rotate()
        except OSError as error:
            self._open_gap(error)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _append(self, payload: bytes) -> None:
        if self._writer is None:
            self._skipped += 1
            return
        try:
            self._writer.append(payload)
        except OSError as error:
            self._open_gap(error)

    def _open_gap(self, error: OSError) -> None:
        if self._writer is not None:
            path = self._writer.path
            self.close()
            set_aside(path, "gap")
        self.fault = f"write journal: {self.directory}: {error.strerror}"

    def _rotate(self) -> None:
        assert self._take_snapshot is not None
        engine, shell = self._take_snapshot()
        number = self._number + 1
        path = self.directory / f"journal.{number:06d}"
        fresh = RecordWriter(path.with_suffix(".new"))
        try:
            fresh.append(_encoder.encode(Head(FORMAT, self._release, self._boot, number)))
            fresh.append(_encoder.encode(Snapshot(engine, shell)))
        except OSError:
            fresh.close()
            fresh.path.unlink(missing_ok=True)
            raise
        # Rename after the snapshot is complete: a kill before that leaves the old segment as the newest.
        fresh.path.rename(path)
        fresh.path = path
        self.close()
        self._writer, self._number, self.fault = fresh, number, ""
        for old in segment_paths(self.directory)[: -self._segments_max]:
            old.unlink(missing_ok=True)


def set_aside(path: Path, why: str) -> None:
    """Rename a segment so that no start reads it again, but an admin can."""
    try:
        path.rename(path.with_name(f"{path.name}.{why}"))
    except OSError:
        path.unlink(missing_ok=True)
