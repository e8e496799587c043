"""Files of checksummed records, for the journal and for the ledger's spool.

A record is `magic, length, crc32, payload`, appended with one write. A reader stops at a torn tail, skips records with
a wrong checksum and counts them. It never raises because of damage: the daemon must start.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HEADER = struct.Struct("<4sII")
MAGIC = b"SlR1"
RECORD_BYTES_MAX = 16 * 1024 * 1024


def frame(payload: bytes) -> bytes:
    return HEADER.pack(MAGIC, len(payload), zlib.crc32(payload)) + payload


@dataclass(slots=True)
class Damage:
    """What a reader had to skip: bytes and records. `offset` is where the first damage begins."""

    offset: int = 0
    byte_count: int = 0
    record_count: int = 0

    def note(self, offset: int, byte_count: int) -> None:
        if not self.record_count:
            self.offset = offset
        self.byte_count += byte_count
        self.record_count += 1


def read_records(path: Path, damage: Damage) -> Iterator[bytes]:
    """Yield the good payloads of a file in order; after damage, continue at the next valid record."""
    content = path.read_bytes()
    offset = 0
    while offset + HEADER.size <= len(content):
        magic, length, checksum = HEADER.unpack_from(content, offset)
        start, end = offset + HEADER.size, offset + HEADER.size + length
        is_whole = magic == MAGIC and length <= RECORD_BYTES_MAX and end <= len(content)
        if is_whole and zlib.crc32(content[start:end]) == checksum:
            yield content[start:end]
            offset = end
            continue
        following = content.find(MAGIC, offset + 1)
        stop = following if following >= 0 else len(content)
        damage.note(offset, stop - offset)
        offset = stop
    if offset < len(content):
        damage.note(offset, len(content) - offset)


class RecordWriter:
    """Appends records to one file. A failed write leaves no partial record: the file is truncated again."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self.path = path
        self._fd = os.open(path, flags, 0o600)
        self.size_bytes = os.fstat(self._fd).st_size

    def append(self, payload: bytes) -> None:
        """Raises OSError if the write fails; the file is unchanged then."""
        whole = frame(payload)
        try:
            written = os.write(self._fd, whole)
            if written != len(whole):
                raise OSError(28, "no space left for a whole record")
        except OSError:
            os.ftruncate(self._fd, self.size_bytes)
            raise
        self.size_bytes += len(whole)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
