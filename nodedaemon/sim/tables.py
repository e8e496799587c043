"""Reads the CSV files that users supply: a table of jobs, and the measured speeds of pairs of models.

An error lists every bad row with its line. A file with a bad row is not simulated.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path

from nodedaemon.core.errors import RequestError
from nodedaemon.core.types import MILLISECOND_NS, SECOND_NS, JobClass, JobId
from nodedaemon.sim.models import bytes_of, models
from nodedaemon.sim.workload import Job, Workload, by_submission

#: Columns of a table of jobs. Only submit_s is always required; the name of a published model can replace the others.
COLUMNS = (
    "job",
    "submit_s",
    "model",
    "persistent_mb",
    "ephemeral_mb",
    "iteration_ms",
    "iterations",
    "length_s",
    "startup_s",
    "user",
    "account",
    "class",
    "weight",
    "gpus",
)
PAIR_COLUMNS = ("model", "beside", "speed")
#: A file with more bad rows than this is probably not a table of jobs, and a longer list would hide the first row.
BAD_ROWS_SHOWN_MAX = 100


class BadRowError(ValueError):
    """One row cannot be read. The message names the column and the reason."""


def read_lines(path: Path) -> list[str]:
    """Read a text file. Bytes that are not UTF-8 are shown escaped instead of failing."""
    try:
        return path.read_text(encoding="utf-8-sig", errors="backslashreplace").splitlines()
    except OSError as error:
        raise RequestError(f"read workload: {path}: {error.strerror or error}; give a readable file") from error


def refuse_bad_rows(path: Path, bad: list[str]) -> None:
    """Raise one error that lists every bad row of the file, if there are any."""
    if not bad:
        return
    shown = bad[:BAD_ROWS_SHOWN_MAX]
    if len(bad) > len(shown):
        shown.append(f"... and {len(bad) - len(shown)} more")
    rows = "\n".join(f"{path}:{line}" for line in shown)
    plural = "row" if len(bad) == 1 else "rows"
    raise RequestError(f"read workload: {path}: {len(bad)} bad {plural}, so nothing was run\n{rows}")


def parse_rows(
    path: Path, columns: tuple[str, ...], needed: tuple[str, ...], parse: Callable[[dict[str, str], int], None]
) -> None:
    """Call `parse` with the fields and the line number of every row. Raises one `RequestError` with all bad rows."""
    numbered = [(n, line) for n, line in enumerate(read_lines(path), start=1) if line.strip() and line[0] != "#"]
    if not numbered:
        raise RequestError(f"read workload: {path}: the file is empty; the first row must name the columns")
    header_at, header = numbered[0][0], [name.strip().lower() for name in next(csv.reader([numbered[0][1]]))]
    faults = [f"unknown column {name!r}" for name in header if name not in columns]
    faults += [f"no column {name!r}" for name in needed if name not in header]
    faults += [f"column {name!r} twice" for name in sorted({name for name in header if header.count(name) > 1})]
    if faults:
        raise RequestError(
            f"read workload: {path}:{header_at}: {', '.join(faults)}; known columns: {', '.join(columns)}"
        )
    bad: list[str] = []
    for number, line in numbered[1:]:
        try:
            cells = next(csv.reader([line], strict=True))
            if len(cells) != len(header):
                raise BadRowError(f"{len(cells)} fields where the header has {len(header)}")
            parse({name: cell.strip() for name, cell in zip(header, cells, strict=True)}, number)
        except (csv.Error, StopIteration) as error:
            bad.append(f"{number}: not a CSV row ({error})")
        except BadRowError as error:
            bad.append(f"{number}: {error}")
    refuse_bad_rows(path, bad)


def number_of(row: dict[str, str], column: str, low: float, high: float) -> float:
    """Read a finite number between `low` and `high`."""
    text = row[column]
    try:
        value = float(text)
    except ValueError:
        raise BadRowError(f"{column} is {text!r}, not a number") from None
    if not math.isfinite(value) or not low <= value <= high:
        raise BadRowError(f"{column} is {text}, outside {low:g} to {high:g}")
    return value


class _Row:
    """One row of a table of jobs. Its methods collect faults and continue, so that one error lists them all."""

    def __init__(self, cells: dict[str, str]) -> None:
        self._cells = cells
        self._model = models().get(cells.get("model", ""))
        self.faults: list[str] = []
        has_memory = bool(self.text("persistent_mb")) and bool(self.text("ephemeral_mb"))
        if self.text("model") and self._model is None and not has_memory:
            self.faults.append(
                f"model {self.text('model')!r} is not in the published table; give persistent_mb and ephemeral_mb"
            )

    def text(self, column: str, default: str = "") -> str:
        return self._cells.get(column) or default

    def number(self, column: str, low: float, high: float) -> float:
        try:
            return number_of(self._cells, column, low, high)
        except BadRowError as error:
            self.faults.append(str(error))
            return low

    def whole(self, column: str, high: int) -> int:
        if not self.text(column):
            return 1
        value = self.number(column, 1, high)
        if value != int(value):
            self.faults.append(f"{column} is {self.text(column)}, not a whole number")
        return int(value)

    def persistent_bytes(self) -> int:
        return self._memory("persistent_mb", self._model.persistent_bytes if self._model else 0)

    def ephemeral_bytes(self) -> int:
        return self._memory("ephemeral_mb", self._model.ephemeral_bytes if self._model else 0)

    def _memory(self, column: str, published_bytes: int) -> int:
        if self.text(column):
            fault_count = len(self.faults)
            self.number(column, 0, 1e9)
            return bytes_of(self.text(column)) if len(self.faults) == fault_count else 0
        if not self.text("model"):
            self.faults.append(f"{column} is empty and no model is named")
        return published_bytes

    def iteration_ns(self) -> int:
        if self.text("iteration_ms"):
            return max(1, round(self.number("iteration_ms", 1e-6, 1e10) * MILLISECOND_NS))
        if self._model is None or self._model.iteration_ns is None:
            self.faults.append("iteration_ms is empty and the model has no published one")
            return 1
        return self._model.iteration_ns

    def iteration_count(self, iteration_ns: int) -> int:
        if self.text("iterations") and self.text("length_s"):
            self.faults.append("both iterations and length_s are given; give one")
        elif self.text("iterations"):
            return self.whole("iterations", 10**12)
        elif self.text("length_s"):
            return max(1, round(self.number("length_s", 1e-9, 1e10) * SECOND_NS / iteration_ns))
        else:
            self.faults.append("neither iterations nor length_s is given")
        return 1

    def startup_ns(self) -> int:
        return round(self.number("startup_s", 0, 1e10) * SECOND_NS) if self.text("startup_s") else 0

    def job_class(self) -> JobClass:
        name = self.text("class", str(JobClass.NORMAL))
        job_class = JobClass.named(name.lower().replace("_", "-"))
        if job_class is None:
            self.faults.append(f"class is {name!r}, not one of {', '.join(map(str, JobClass))}")
        return JobClass.NORMAL if job_class is None else job_class


def _job(cells: dict[str, str], line: int) -> Job:
    row = _Row(cells)
    submit_ns = round(row.number("submit_s", 0, 1e10) * SECOND_NS)
    persistent_bytes, ephemeral_bytes = row.persistent_bytes(), row.ephemeral_bytes()
    iteration_ns = row.iteration_ns()
    user = row.text("user", "user")
    job = Job(
        id=JobId(row.text("job", f"line{line}")),
        submit_ns=submit_ns,
        persistent_bytes=persistent_bytes,
        ephemeral_bytes=ephemeral_bytes,
        iteration_ns=iteration_ns,
        iteration_count=row.iteration_count(iteration_ns),
        model=row.text("model"),
        user=user,
        account=row.text("account", user),
        job_class=row.job_class(),
        weight=row.whole("weight", 10**6),
        device_count=row.whole("gpus", 10**6),
        startup_ns=row.startup_ns(),
    )
    if row.faults:
        raise BadRowError("; ".join(row.faults))
    return job


def read_workload(path: Path) -> Workload:
    """Read a table of jobs (columns: `COLUMNS`). Raises `RequestError` with every bad row."""
    jobs: dict[str, tuple[Job, int]] = {}

    def add(cells: dict[str, str], line: int) -> None:
        job = _job(cells, line)
        if job.id in jobs:
            raise BadRowError(f"job {job.id} is already on line {jobs[job.id][1]}")
        jobs[job.id] = job, line

    parse_rows(path, COLUMNS, ("submit_s",), add)
    if not jobs:
        raise RequestError(f"read workload: {path}: no job in the file; add a row for each")
    return Workload(
        name=path.name,
        jobs=by_submission(job for job, _ in jobs.values()),
        about="jobs of a table",
        source=path.name,
        parameters={"jobs": len(jobs)},
    )


def read_pair_speeds(path: Path) -> dict[tuple[str, str], float]:
    """Read measured speeds of a model next to another one, as a fraction of its speed alone (above 0, at most 1)."""
    speeds: dict[tuple[str, str], float] = {}

    def add(cells: dict[str, str], _line: int) -> None:
        pair = (cells["model"], cells["beside"])
        if not all(pair):
            raise BadRowError("model and beside must both be named")
        if pair in speeds:
            raise BadRowError(f"{pair[0]} beside {pair[1]} is already in the table")
        speeds[pair] = number_of(cells, "speed", 0.001, 1.0)

    parse_rows(path, PAIR_COLUMNS, PAIR_COLUMNS, add)
    return speeds
