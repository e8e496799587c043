"""Slurm's TRES requests as values. Pure.

Slurm writes a request for generic resources as `gres:salus:1,gres:shard:3` (22.05) or `gres/salus:1` (from 23.02 on).
Both are read, and a changed request keeps the spelling of the original.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

COUNT_SUFFIXES = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


@dataclass(frozen=True, slots=True)
class Tres:
    """One requested generic resource: `gres/gpu:a100:2` is name gpu, type a100, count 2."""

    name: str
    type: str = ""
    count: int = 1


def read_count(text: str) -> int | None:
    """A count, with a suffix if it is large: 10K is 10,240. None if it is not a count."""
    matched = re.fullmatch(r"(\d+)([KMG]?)", text)
    return int(matched[1]) * COUNT_SUFFIXES[matched[2]] if matched else None


def parse_tres(text: str) -> list[Tres]:
    """Read a TRES request in either spelling. An item that cannot be read becomes a Tres with its text and count 0."""
    found = []
    for item in filter(None, (piece.strip() for piece in text.split(","))):
        parts = re.split(r"[:=]", re.sub(r"^gres[:/]", "", item))
        count = read_count(parts[-1]) if len(parts) > 1 else None
        if count is not None:
            parts.pop()
        if len(parts) > 2 or not parts[0]:
            found.append(Tres(item, count=0))
        else:
            found.append(Tres(parts[0], "".join(parts[1:]), 1 if count is None else count))
    return found


def charged_tres(asked: str, shard_count: int | None) -> str:
    """The request with its charge, in the spelling of the request. No `shard_count`: a whole device, as gres/gpu."""
    mark = "/" if asked.startswith("gres/") else ":"
    charge = f"shard:{shard_count}" if shard_count is not None else "gpu:1"
    others = [piece for piece in asked.split(",") if parse_tres(piece)[0].name not in ("salus", "shard", "gpu")]
    return ",".join([f"gres{mark}salus:1", f"gres{mark}{charge}", *others])


def array_throttle(array: str) -> tuple[str, int | None]:
    """Task list and limit of `1-12%4`; no limit is None."""
    tasks, _, limit = array.partition("%")
    return tasks, int(limit) if limit.isdecimal() else None
