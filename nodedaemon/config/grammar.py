"""Parses a configuration file into lines of Key=Value settings, in the syntax of slurm.conf (docs/man/salus.conf.md).

A comment runs from # to the end of the line (\\# is a plain #). A line that ends with a backslash continues
on the next. `Include FILE` reads another file. Any bytes are accepted: text that is not a setting becomes a finding.
The size, depth and number of files are bounded.
"""

import os
import re
import stat
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nodedaemon.config.finding import Findings, Place, shown

FILE_BYTES_MAX = 1 << 20
FILE_COUNT_MAX = 64
INCLUDE_DEPTH_MAX = 16
# A comment without its # is one mistake, not one per word.
BAD_WORD_COUNT_MAX = 5

Reader = Callable[[Path], bytes]

_SPACE = re.compile(r"[^\S\n]*")
_KEY = r"[A-Za-z0-9_.\-]+"
# Spaces may precede a value, as in slurm.conf, unless the next setting follows.
_SETTING = re.compile(rf'({_KEY})\s*=(?:\s*"([^"]*)"(?=\s|$)|\s*(?!{_KEY}\s*=)([^\s"]\S*)|(?=\s|$))')
_INCLUDE = re.compile(r"include(?:\s+(?!=)(.*\S))?\s*", re.IGNORECASE)
_WORD = re.compile(r"\S+")


@dataclass(frozen=True)
class Setting:
    """One Key=Value pair, as written."""

    key: str
    value: str
    place: Place


@dataclass
class Scan:
    """One pass over a file and all files that it includes."""

    read: Reader
    findings: Findings
    files: list[str] = field(default_factory=list)
    # For %c in Include: the ClusterName set so far.
    cluster_name: str | None = None

    def lines_of(self, path: Path, data: bytes, above: tuple[Path, ...] = ()) -> Iterator[tuple[Setting, ...]]:
        """The settings of `data`, line by line, with those of included files in place of each Include."""
        self.files.append(str(path))
        for text, starts in _logical_lines(data):
            if self.findings.is_full:
                return
            place = Place(str(path), starts[0][1])
            if "\N{REPLACEMENT CHARACTER}" in text:
                self.findings.add(place, "", "is not UTF-8; save the file in that encoding")
                continue
            include = _INCLUDE.fullmatch(text.strip())
            if include is not None:
                yield from self._included(include.group(1) or "", place, (*above, path))
                continue
            settings = tuple(self._settings_of(text, str(path), starts))
            if settings:
                yield settings

    def _settings_of(self, text: str, file: str, starts: list[tuple[int, int]]) -> Iterator[Setting]:
        position, bad_word_count = _end(_SPACE, text, 0), 0
        while position < len(text) and bad_word_count < BAD_WORD_COUNT_MAX and not self.findings.is_full:
            place = Place(file, starts[bisect_right(starts, (position, 1 << 60)) - 1][1])
            match = _SETTING.match(text, position)
            if match is None:
                bad_word_count += 1
                word = _WORD.match(text, position)
                stop = word.end() if word else len(text)
                # After a quote that is never closed, the rest of the line has no meaning.
                if text.count('"', position, stop) % 2:
                    stop = len(text)
                self.findings.add(place, "", f"{shown(text[position:stop])!r} is not Key=Value; quote text with spaces")
            else:
                stop = match.end()
                value = next((group for group in match.groups()[1:] if group is not None), "")
                if match.group(1).casefold() == "clustername":
                    self.cluster_name = value
                yield Setting(match.group(1), value.replace("\\#", "#"), place)
            position = _end(_SPACE, text, stop)

    def _included(self, written: str, place: Place, above: tuple[Path, ...]) -> Iterator[tuple[Setting, ...]]:
        name = written.strip('"')
        if "%c" in name:
            if self.cluster_name is None:
                self.findings.add(place, "Include", "uses %c before ClusterName is set; set it above this line")
                return
            name = name.replace("%c", self.cluster_name)
        if not name or "\0" in name:
            self.findings.add(place, "Include", "names no file")
            return
        path = above[-1].parent / name
        problem = None
        if any(os.path.realpath(path) == os.path.realpath(upper) for upper in above):
            problem = f"{shown(name)} includes itself through this line"
        elif len(above) >= INCLUDE_DEPTH_MAX:
            problem = f"files include each other more than {INCLUDE_DEPTH_MAX} deep"
        elif len(self.files) >= FILE_COUNT_MAX:
            problem = f"more than {FILE_COUNT_MAX} files are read"
        if problem is None:
            try:
                data = self.read(path)
            except OSError as error:
                problem = f"{shown(name)} cannot be read: {error.strerror or error}"
            else:
                yield from self.lines_of(path, data, above)
        if problem is not None:
            self.findings.add(place, "Include", problem)


def read_file(path: Path) -> bytes:
    """The bytes of a regular file, up to a limit. Raises OSError for others: a pipe or device could block forever."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(0, "not a regular file")
        with open(handle, "rb", closefd=False) as stream:
            data = stream.read(FILE_BYTES_MAX + 1)
    finally:
        os.close(handle)
    if len(data) > FILE_BYTES_MAX:
        raise OSError(0, f"larger than {FILE_BYTES_MAX} bytes")
    return data


def _end(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return match.end() if match else position


def _logical_lines(data: bytes) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Lines without comments and with continuations joined, each with the offsets of its lines in the file."""
    text, starts = "", list[tuple[int, int]]()
    for number, physical in enumerate(data.decode("utf-8", errors="replace").split("\n"), start=1):
        piece, is_continued = _without_comment(physical.rstrip("\r"))
        starts.append((len(text), number))
        text += piece
        if is_continued:
            continue
        yield text, starts
        text, starts = "", []
    if starts:
        yield text, starts


def _without_comment(line: str) -> tuple[str, bool]:
    is_quoted = False
    for position, character in enumerate(line):
        if character == '"':
            is_quoted = not is_quoted
        elif character == "#" and not is_quoted and line[position - 1 : position] != "\\":
            return line[:position], False
    stripped = line.rstrip()
    return (stripped[:-1], True) if stripped.endswith("\\") else (line, False)
