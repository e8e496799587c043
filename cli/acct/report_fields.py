"""The fields of `salus-acct report`: one table feeds --format, --helpformat, the text table, -P, CSV and JSON.

A field gives a value in base units (nanoseconds, MiB-milliseconds, plain ratios); `Scale` turns it into text. The
grammar of --format is sacct's: name[%[-]width], width right-justified, a minus for left.
"""

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from accounting.reports.measures import Measures
from accounting.reports.report import ReportKind, ReportRow
from cli.output.moments import SECOND_NS, format_duration, format_moment
from nodedaemon.core.errors import RequestError

Value = str | int | float | None
Nature = Literal["text", "count", "moment", "time", "ratio", "part", "memory"]

_PIECE = re.compile(r"(\w+)(?:%(-?\d{1,4}))?")
_MEMORY_STEPS = "MGTP"
_HOUR_MS = 3_600_000


class TimeUnit(StrEnum):
    """How device time is written; the words are sreport's."""

    HOURS = "Hours"
    MINUTES = "Minutes"
    SECONDS = "Seconds"
    PERCENT = "Percent"
    HOUR_PER = "HourPer"
    MINUTE_PER = "MinPer"
    SECOND_PER = "SecPer"


@dataclass(frozen=True)
class Field:
    """One column: what -e prints of it, and how it is taken from a row."""

    name: str
    heading: str
    help: str
    nature: Nature
    take: Callable[[ReportRow], Value]
    width: int = 10


@dataclass(frozen=True)
class Chosen:
    """A field as --format asks for it."""

    field: Field
    width: int
    is_left: bool


def _text(name: str, heading: str, help_text: str, width: int) -> Field:
    return Field(name, heading, help_text, "text", lambda row: str(getattr(row, name)), width)


def _sum(name: str, heading: str, help_text: str, nature: Nature, attribute: str, width: int = 10) -> Field:
    def take(row: ReportRow) -> Value:
        value: Value = getattr(row.measures, attribute)
        return value

    return Field(name, heading, help_text, nature, take, width)


def _moment(name: str, heading: str, help_text: str) -> Field:
    return Field(name, heading, help_text, "moment", lambda row: getattr(row, f"{name}_utc_ns"), 19)


FIELDS = (
    _text("cluster", "Cluster", "name of the cluster", 10),
    _text("account", "Account", "Slurm account", 14),
    _text("user", "User", "user name", 12),
    _text("node", "Node", "node of the device", 12),
    _text("device", "Device", "UUID of the device", 20),
    Field("model", "Model", "device model", "text", lambda row: row.device_model, 18),
    _text("signature", "Signature", "key of the profile", 16),
    Field("jobid", "JobID", "job id as sacct writes it; .sN is a session", "text", lambda row: row.job, 12),
    Field("jobname", "JobName", "name of the job", "text", lambda row: row.name, 16),
    _text("partition", "Partition", "Slurm partition", 10),
    _text("qos", "QOS", "quality of service", 8),
    _text("state", "State", "state of the job, or why a session ended", 12),
    Field("restarts", "Restarts", "how often it was requeued before", "count", lambda row: row.restart_count, 8),
    _moment("submit", "Submit", "when the job was submitted"),
    _moment("start", "Start", "when the run started"),
    _moment("end", "End", "when the run ended"),
    _sum("jobs", "Jobs", "job runs", "count", "job_count", 8),
    _sum("held", "Held", "elapsed x gres/salus count, without suspended time", "time", "held_ns"),
    _sum("suspended", "Suspended", "time suspended, no part of held", "time", "suspended_ns"),
    _sum("elapsed", "Elapsed", "wall time of the runs, without suspended time", "time", "elapsed_ns"),
    _sum("wait", "Wait", "mean wait in Slurm's queue", "time", "queue_wait_mean_ns"),
    _sum("occupied", "Occupied", "busy, and the device's idle time split by charge", "time", "occupied_ns"),
    _sum("busy", "Busy", "running iterations; k at once get 1/k each", "time", "busy_ns"),
    _sum("gatewait", "GateWait", "time spent waiting for a grant", "time", "gate_wait_ns"),
    _sum("outside", "Outside", "time outside iterations", "time", "outside_ns"),
    _sum("entitled", "Entitled", "share by weight of the time that was wanted", "time", "entitled_ns"),
    _sum("alone", "Alone", "iterations x solo time, and time outside; n/a if unknown", "time", "alone_ns"),
    _sum("efficiency", "Eff", "busy / occupied", "part", "efficiency", 7),
    _sum("gain", "Gain", "sharing gain: alone / occupied; n/a if unknown", "ratio", "sharing_gain", 7),
    _sum("slowdown", "Slowdown", "elapsed / alone; n/a if unknown", "ratio", "slowdown", 8),
    _sum("saved", "MemSaved", "sum of peaks over what was really held", "memory", "memory_saved_mib_ms", 12),
    _sum("jain", "Jain", "fairness index of achieved over entitled", "ratio", "jain", 6),
    _sum("iterations", "Iterations", "iterations run", "count", "iteration_count"),
    _sum("handovers", "Handovers", "grants handed over to another session", "count", "handover_count", 9),
)

DEFAULTS: dict[ReportKind, str] = {
    "summary": "account%-24,held,occupied,busy,efficiency,gain,saved,jain",
    "cluster": "cluster%-12,jobs,held,occupied,busy,efficiency,gain,slowdown,saved,jain",
    "account": "account%-24,jobs,held,occupied,busy,efficiency,gain,saved,jain",
    "user": "user%-24,jobs,held,occupied,busy,efficiency,gain,saved,jain",
    "device": "node%-12,device%-24,model%-18,jobs,occupied,busy,efficiency,saved,jain",
    "job": "jobid%-14,jobname,user,account,state,start,held,occupied,busy,efficiency,gain,slowdown",
    "profile": "user%-12,signature%-20,model%-18,occupied,busy,alone,efficiency,gain,slowdown,iterations",
}

# A table without a tree needs a column for what the tree shows by its place.
FLAT_SUMMARY = "account,user,held,occupied,busy,efficiency,gain,saved,jain"


def choose(text: str) -> list[Chosen]:
    """The fields that --format names; RequestError with the nearest known name otherwise."""
    known = {field.name: field for field in FIELDS}
    chosen: list[Chosen] = []
    for piece in text.split(","):
        match = _PIECE.fullmatch(piece.strip())
        field = known.get(match[1].lower()) if match else None
        if match is None or field is None:
            near = difflib.get_close_matches(piece.partition("%")[0].lower().strip(), known, 1)
            hint = f"do you mean {near[0]}?" if near else "see salus-acct report --helpformat"
            raise RequestError(f"field not known: {piece.strip()!r}: it is not in the table; {hint}")
        width = int(match[2] or field.width)
        chosen.append(Chosen(field, abs(width), width < 0))
    return chosen


@dataclass(frozen=True)
class Scale:
    """How values become text. `total` is what Percent and the Per units are taken of."""

    unit: TimeUnit | None
    total: Measures
    memory_unit: str = ""
    is_converted: bool = True
    moment_style: str = "standard"

    def text(self, field: Field, row: ReportRow) -> str:
        """The value of a field in a row; n/a where it cannot be known, empty where it does not apply."""
        value = field.take(row)
        if value is None or (row.job and row.depth and field.nature not in ("text", "moment") and not value):
            # Of a session only its counts are kept; time is metered by job.
            if row.job and row.depth:
                return ""
            return "" if field.nature == "count" or not _has_usage(row) else "n/a"
        match field.nature:
            case "time":
                return self.time(field, int(value))
            case "moment":
                return format_moment(int(value), self.moment_style)
            case "part":
                return f"{float(value):.1%}"
            case "ratio":
                return f"{float(value):.2f}" + ("x" if field.name in ("gain", "slowdown") else "")
            case "memory":
                return self.memory(int(value))
            case _:
                return str(value)

    def time(self, field: Field, span_ns: int) -> str:
        """Device time in the unit that was asked for; [D-]HH:MM:SS where none was."""
        whole = field.take(ReportRow(measures=self.total))
        part = span_ns / whole if isinstance(whole, int) and whole else None
        percent = "n/a" if part is None else f"{part:.2%}"
        seconds = span_ns / SECOND_NS
        match self.unit:
            case None:
                return format_duration(span_ns)
            case TimeUnit.PERCENT:
                return percent
            case TimeUnit.HOURS:
                return f"{seconds / 3600:.2f}"
            case TimeUnit.MINUTES:
                return f"{seconds / 60:.1f}"
            case TimeUnit.SECONDS:
                return f"{seconds:.0f}"
            case TimeUnit.HOUR_PER:
                return f"{seconds / 3600:.2f}({percent})"
            case TimeUnit.MINUTE_PER:
                return f"{seconds / 60:.1f}({percent})"
            case TimeUnit.SECOND_PER:
                return f"{seconds:.0f}({percent})"

    def memory(self, mib_ms: int) -> str:
        """Memory over time in MiB-hours and upwards, as sacct scales sizes."""
        amount, step = mib_ms / _HOUR_MS, 0
        if not self.is_converted:
            return f"{amount:.2f}M.h"
        if self.memory_unit:
            place = "KMGTP".index(self.memory_unit) - 1
            return f"{amount / 1024**place:.2f}{self.memory_unit}.h"
        while abs(amount) >= 1024 and step < len(_MEMORY_STEPS) - 1:
            amount, step = amount / 1024, step + 1
        return f"{amount:.2f}{_MEMORY_STEPS[step]}.h"


def help_rows() -> Sequence[tuple[str, str]]:
    """What --helpformat prints."""
    return [(field.name, field.help) for field in FIELDS]


def _has_usage(row: ReportRow) -> bool:
    return row.measures.usage_count > 0 or row.measures.job_count > 0
