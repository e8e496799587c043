"""Reads the parts of slurm.conf, gres.conf and plugstack.conf that Salus must agree with. It never writes them.

Slurm's own parser decides whether these files are valid; this one is lenient and looks only for the keys that we need.
It follows `Include`, ignores case in names, and treats NodeName, PartitionName and Name lines as records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nodedaemon.config.hostlist import expand
from nodedaemon.core.errors import RequestError
from slurm_plugin.slurm.tres import read_count

INCLUDES_MAX = 64
PAIR = re.compile(r"(\w+)\s*=\s*(\"[^\"]*\"|\S+)")


@dataclass(frozen=True, slots=True)
class GresLine:
    """One line of gres.conf."""

    nodes: tuple[str, ...]
    name: str
    count: int
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SlurmFiles:
    values: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, dict[str, str]] = field(default_factory=dict)
    gres: tuple[GresLine, ...] = ()
    #: Arguments of our line in plugstack.conf; None if there is no such line.
    plugin: tuple[str, ...] | None = None

    def listed(self, key: str) -> list[str]:
        return [piece.strip() for piece in self.values.get(key.casefold(), "").split(",") if piece.strip()]

    def gres_of(self, node: str, name: str) -> list[GresLine]:
        return [line for line in self.gres if line.name == name and (not line.nodes or node in line.nodes)]


def read_lines(path: Path, depth: int = 0) -> Iterator[dict[str, str]]:
    """The keys and values of each line. Comments are skipped, continuation lines joined, includes followed."""
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        raise RequestError(
            f"config check: {path}: {error.strerror}; name slurm.conf with SlurmConf= or --slurm"
        ) from error
    for raw in re.sub(r"\\\n", " ", text).splitlines():
        line = re.sub(r"(?<!\\)#.*", "", raw).strip()
        included = re.fullmatch(r"include\s+(\S+)", line, re.IGNORECASE)
        if included and depth < INCLUDES_MAX:
            yield from read_lines(path.parent / included[1], depth + 1)
        elif fields := {key.casefold(): value.strip('"') for key, value in PAIR.findall(line)}:
            yield fields


def read_slurm_files(path: Path) -> SlurmFiles:
    """Read slurm.conf at `path` and the gres.conf beside it, if there is one."""
    values: dict[str, str] = {}
    nodes: dict[str, dict[str, str]] = {}
    for fields in read_lines(path):
        kind = next(iter(fields))
        if kind == "nodename":
            nodes.update({name: fields for name in names_of(fields[kind]) if name != "DEFAULT"})
        elif kind != "partitionname":
            values.update(fields)
    gres_path = path.parent / "gres.conf"
    gres = tuple(read_gres(gres_path)) if gres_path.exists() else ()
    plugstack = path.parent / values.get("plugstackconfig", "plugstack.conf")
    return SlurmFiles(values, nodes, gres, read_plugin(plugstack))


def read_plugin(path: Path) -> tuple[str, ...] | None:
    """The arguments of salus_spank.so; None if plugstack.conf does not load it."""
    if not path.exists():
        return None
    for line in path.read_text(errors="replace").splitlines():
        words = line.partition("#")[0].split()
        if len(words) > 1 and words[0] in ("required", "optional") and words[1].endswith("salus_spank.so"):
            return tuple(words[2:])
    return None


def read_gres(path: Path) -> Iterator[GresLine]:
    for fields in read_lines(path):
        if "name" not in fields:
            continue
        files = names_of(fields.get("file", ""))
        count = (read_count(fields["count"].upper()) or 0) if "count" in fields else len(files)
        yield GresLine(names_of(fields.get("nodename", "")), fields["name"].casefold(), count, files)


def names_of(text: str) -> tuple[str, ...]:
    try:
        return tuple(expand(text)) if text else ()
    except ValueError:
        return (text,)
