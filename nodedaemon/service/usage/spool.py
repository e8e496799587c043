"""A bounded spool on disk: records wait here until the database accepts them.

A segment `NNNNNNNN.V` holds records of importance V (`accounting.records.importance`). A batch is one segment; it is
deleted after the database has accepted it. When the spool is full, it drops the oldest segment of the lowest importance
first and counts every dropped record. It never drops a record for a less important one.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from nodedaemon.service.journal.record_file import Damage, RecordWriter, read_records

SPOOL_BYTES_MAX = 64 * 1024 * 1024
SEGMENT_BYTES_MAX = 128 * 1024
#: Records held in memory while nothing can be written to the disk.
HELD_RECORDS_MAX = 2000


class RecordValue(IntEnum):
    """How important a record is if not all can be kept, as `importance` returns it. The lowest is dropped first."""

    READING = 0
    ITERATION = 1
    START = 2
    COMPLETION = 3


@dataclass(frozen=True, slots=True)
class Batch:
    path: Path
    payloads: tuple[bytes, ...]


@dataclass(slots=True)
class Spool:
    directory: Path
    bytes_max: int = SPOOL_BYTES_MAX
    segment_bytes_max: int = SEGMENT_BYTES_MAX
    dropped: Counter[RecordValue] = field(default_factory=Counter)
    fault: str = ""
    _writers: dict[RecordValue, RecordWriter] = field(default_factory=dict)
    _counts: dict[Path, int] = field(default_factory=dict)
    _sizes: dict[Path, int] = field(default_factory=dict)
    _held: dict[RecordValue, deque[bytes]] = field(default_factory=dict)
    _number: int = 0

    def __post_init__(self) -> None:
        for path in self._segment_paths():
            self._number = max(self._number, int(path.stem))
            self._sizes[path] = path.stat().st_size
            self._counts[path] = sum(1 for _ in read_records(path, Damage()))

    @property
    def record_count(self) -> int:
        return sum(self._counts.values()) + self.held_count

    @property
    def held_count(self) -> int:
        return sum(len(queue) for queue in self._held.values())

    @property
    def size_bytes(self) -> int:
        return sum(self._sizes.values())

    def append(self, value: RecordValue, payload: bytes) -> None:
        """Keep a record; never raises. If the disk is full, records wait in memory, up to a bound."""
        if self.held_count:
            self._hold(value, payload)
            self._write_held()
        elif not self._write(value, payload):
            self._hold(value, payload)

    def next_batch(self) -> Batch | None:
        """The oldest segment, closed to further records, or None. It stays until `finish` is called with it."""
        self._write_held()
        for path in self._segment_paths():
            value = RecordValue(int(path.suffix[1:]))
            writer = self._writers.get(value)
            if writer is not None and writer.path == path:
                writer.close()
                del self._writers[value]
            payloads = tuple(read_records(path, Damage()))
            if payloads:
                return Batch(path, payloads)
            self._forget(path)
        return None

    def finish(self, batch: Batch) -> None:
        self._forget(batch.path)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _write(self, value: RecordValue, payload: bytes) -> bool:
        while self.size_bytes + len(payload) > self.bytes_max:
            if not self._drop_oldest(up_to=value):
                self.dropped[value] += 1
                return True
        try:
            self._append(value, payload)
        except OSError as error:
            self.fault = f"write spool: {self.directory}: {error.strerror}"
            # The spool itself may have filled the disk: drop its least valuable segment and try once more.
            if not self._drop_oldest(up_to=RecordValue(max(value - 1, 0))):
                return False
            try:
                self._append(value, payload)
            except OSError:
                return False
        self.fault = ""
        return True

    def _append(self, value: RecordValue, payload: bytes) -> None:
        writer = self._writers.get(value)
        if writer is None or writer.size_bytes >= self.segment_bytes_max:
            fresh = RecordWriter(self.directory / f"{self._number + 1:08d}.{int(value)}")
            self._number += 1
            if writer is not None:
                writer.close()
            self._writers[value] = writer = fresh
        writer.append(payload)
        self._sizes[writer.path] = writer.size_bytes
        self._counts[writer.path] = self._counts.get(writer.path, 0) + 1

    def _drop_oldest(self, up_to: RecordValue) -> bool:
        paths = self._segment_paths()
        for value in RecordValue:
            if value > up_to:
                return False
            for path in paths:
                if int(path.suffix[1:]) == value:
                    self.dropped[value] += self._counts.get(path, 0)
                    self._forget(path)
                    return True
        return False

    def _hold(self, value: RecordValue, payload: bytes) -> None:
        self._held.setdefault(value, deque()).append(payload)
        while self.held_count > HELD_RECORDS_MAX:
            lowest = min(kind for kind, queue in self._held.items() if queue)
            self._held[lowest].popleft()
            self.dropped[lowest] += 1

    def _write_held(self) -> None:
        for value in sorted(self._held, reverse=True):
            queue = self._held[value]
            while queue and self._write(value, queue[0]):
                queue.popleft()

    def _forget(self, path: Path) -> None:
        value = RecordValue(int(path.suffix[1:]))
        writer = self._writers.get(value)
        if writer is not None and writer.path == path:
            writer.close()
            del self._writers[value]
        path.unlink(missing_ok=True)
        self._sizes.pop(path, None)
        self._counts.pop(path, None)

    def _segment_paths(self) -> list[Path]:
        return sorted(path for path in self.directory.iterdir() if path.stem.isdigit() and path.suffix[1:].isdigit())
