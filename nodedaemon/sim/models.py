"""The published table of models (data/models.csv): persistent and ephemeral memory, and iteration time where known."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from nodedaemon.core.types import MIB, MILLISECOND_NS


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    kind: str
    persistent_bytes: int
    ephemeral_bytes: int
    iteration_ns: int | None


def bytes_of(size_mb: str) -> int:
    """Read the table's MB as MiB, rounded up to whole bytes."""
    return -int(-float(size_mb) * MIB // 1)


@cache
def models() -> dict[str, Model]:
    """Every row of the published table, by name, in its order."""
    text = (files("nodedaemon.sim") / "data" / "models.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {
        row["job"]: Model(
            row["job"],
            row["kind"],
            bytes_of(row["persistent_mb"]),
            bytes_of(row["ephemeral_mb"]),
            round(float(row["iteration_ms"]) * MILLISECOND_NS) if row["iteration_ms"] else None,
        )
        for row in rows
    }


def timed_models() -> tuple[Model, ...]:
    """The rows that have a published iteration time."""
    return tuple(model for model in models().values() if model.iteration_ns is not None)
