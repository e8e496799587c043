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
    """One generic resource asked for: `gres/gpu:a100:2` is name gpu, type a100, count 2."""

    name: str
    type: str = ""
    count: int = 1


def parse_tres(text: str) -> list[Tres]:
    """Read a TRES request in either spelling; what cannot be read becomes a Tres with count 0 and the text as name."""
    found = []
    for item in filter(None, (piece.strip() for piece in text.split(","))):
        parts = re.split(r"[:=]", re.sub(r"^gres[:/]", "", item))
        # A count carries a suffix where it is large: shard:10K is 10,240.
        counted = re.fullmatch(r"(\d+)([KMG]?)", parts[-1]) if len(parts) > 1 else None
        if counted:
            parts.pop()
        if len(parts) > 2 or not parts[0]:
            found.append(Tres(item, count=0))
            continue
        count = int(counted[1]) * COUNT_SUFFIXES[counted[2]] if counted else 1
        found.append(Tres(parts[0], parts[1] if len(parts) == 2 else "", count))
    return found


def tres_separator(text: str) -> str:
    """`:` or `/`, as this release of Slurm writes it."""
    return "/" if text.startswith("gres/") else ":"


def charged_tres(asked: str, shard_count: int | None) -> str:
    """The request with its charge, in the spelling of the question; None stands for a whole device by gres/gpu."""
    mark = tres_separator(asked)
    charge = f"shard:{shard_count}" if shard_count is not None else "gpu:1"
    others = [piece for piece in asked.split(",") if parse_tres(piece)[0].name not in ("salus", "shard", "gpu")]
    return ",".join([f"gres{mark}salus:1", f"gres{mark}{charge}", *others])


def array_throttle(array: str) -> tuple[str, int | None]:
    """Task list and limit of `1-12%4`; no limit is None."""
    tasks, _, limit = array.partition("%")
    return tasks, int(limit) if limit.isdecimal() else None
