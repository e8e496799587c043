"""The `salus:` segment of a job's admin_comment, in which Slurm stores the result of admission.

    salus:1;adm=ID;P=BYTES;E=BYTES;N=SHARDS;K=KIND;C=CLASS;T=SECONDS;S=SIGNATURE;M=P,E;A=LIMIT

This module owns the format; docs/protocol.md describes the keys. Several tools write words into an admin_comment,
separated by ASCII white space. The segment is one word, and the summary after a run (`salus-sum:1`) is another. Each
starts with its mark and a semicolon. Words of other tools stay as they are.

slurm_plugin/hooks/prolog.py has a copy of `find_segment` and slurm_plugin/lua/job_submit.lua one of `merge_word`.
tests/unit/wire/test_segment.py compares them with this module.
"""

from __future__ import annotations

import re
from functools import cache
from string import whitespace
from typing import Final

import msgspec

SEGMENT_MARK: Final = "salus:1"
SUMMARY_MARK: Final = "salus-sum:1"


class AdmissionSegment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of a segment, under their keys, in the order in which they are written. Sizes include headroom."""

    admission: str = msgspec.field(name="adm", default="")
    persistent_bytes: int | None = msgspec.field(name="P", default=None)
    ephemeral_bytes: int | None = msgspec.field(name="E", default=None)
    shard_count: int | None = msgspec.field(name="N", default=None)
    kind: str = msgspec.field(name="K", default="")
    job_class: str = msgspec.field(name="C", default="")
    time_s: int | None = msgspec.field(name="T", default=None)
    signature: str = msgspec.field(name="S", default="")
    declared: str = msgspec.field(name="M", default="")
    throttle: int | None = msgspec.field(name="A", default=None)


_LOWER_KEYS = {field.encode_name.lower(): field.encode_name for field in msgspec.structs.fields(AdmissionSegment)}
_NUMBER_KEYS = {field.encode_name for field in msgspec.structs.fields(AdmissionSegment) if field.type == int | None}


def find_segment(comment: str) -> str:
    """The segment as text; empty if the comment has none."""
    return find_word(comment, SEGMENT_MARK)


def parse_segment(comment: str, *, is_lower_case: bool = False) -> AdmissionSegment | None:
    """The segment of an admin_comment; None if there is none. Unknown keys and invalid numbers are left out.

    `sacctmgr` stores comments in lower case. With `is_lower_case` their keys are recognised, but the case of a name in
    them is lost.
    """
    word = find_segment(comment)
    if not word:
        return None
    values: dict[str, str | int] = {}
    for pair in word.split(";")[1:]:
        key, _, value = pair.partition("=")
        name = _LOWER_KEYS.get(key, key) if is_lower_case else key
        if name not in _NUMBER_KEYS:
            values[name] = value
        elif value.isascii() and value.isdigit():
            values[name] = int(value)
    return msgspec.convert(values, AdmissionSegment)


def format_segment(segment: AdmissionSegment) -> str:
    return ";".join([SEGMENT_MARK, *(f"{key}={value}" for key, value in msgspec.to_builtins(segment).items())])


def merge_segment(comment: str, segment: AdmissionSegment) -> str:
    """The comment with this segment in place of an earlier one, or at its end."""
    return merge_word(comment, SEGMENT_MARK, format_segment(segment))


def find_word(comment: str, mark: str) -> str:
    found = _pattern(mark).search(comment)
    return found[0] if found else ""


def merge_word(comment: str, mark: str, word: str) -> str:
    """The comment with `word` in place of the first word that has this mark, or at its end. The rest stays."""
    merged, count = _pattern(mark).subn(lambda _match: word, comment, count=1)
    if count:
        return merged
    return f"{comment} {word}" if comment and comment[-1] not in whitespace else comment + word


@cache
def _pattern(mark: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\S){re.escape(mark)};\S*", re.ASCII)
