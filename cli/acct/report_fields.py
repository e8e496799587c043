"""The fields of `salus-acct report`: one table for --format, --helpformat, the text table, -P and CSV.

A field's value is in base units (nanoseconds, MiB-milliseconds, ratios); `Scale` formats it. --format has the syntax
of sacct: name[%[-]width], right-justified, or left-justified with a minus.
"""

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from accounting.reports.measures import Measures
from accounting.reports.selection import ReportKind
from accounting.reports.values import ReportRow
from cli.acct.report_options import TimeUnit
from cli.output.moments import format_duration, format_moment
from nodedaemon.core.errors import RequestError
from nodedaemon.core.types import SECOND_NS

FieldValue = str | int | float | None
FieldType = Literal["text", "count", "moment", "time", "ratio", "part", "memory"]

_PIECE = re.compile(r"(\w+)(?:%(-?\d{1,4}))?")
_MEMORY_STEPS = "MGTP"
_HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Field:
    """One column: its help text, and how to get its value from a row."""

    name: str
    heading: str
    help: str
    nature: FieldType
    value_of: Callable[[ReportRow], FieldValue]
    width: int = 10


@dataclass(frozen=True)
class ReportColumn:
    """A field that --format selects, with its width and alignment."""

    field: Field
    width: int
    is_left: bool


def _text(name: str, heading: str, help_text: str, width: int) -> Field:
    return Field(name, heading, help_text, "text", lambda row: str(getattr(row, name)), width)


def _sum(name: str, heading: str, help_text: str, nature: FieldType, attribute: str, width: int = 10) -> Field:
    def value_of(row: ReportRow) -> FieldValue:
        value: FieldValue = getattr(row.measures, attribute)
        return value

    return Field(name, heading, help_text, nature, value_of, width)


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
    Field("jobid", "JobID", "job id as sacct prints it; .sN is a session", "text", lambda row: row.job, 12),
    Field("jobname", "JobName", "name of the job", "text", lambda row: row.name, 16),
    _text("partition", "Partition", "Slurm partition", 10),
    _text("qos", "QOS", "quality of service", 8),
    _text("state", "State", "state of the job, or why a session ended", 12),
    Field("restarts", "Restarts", "number of earlier runs (requeues)", "count", lambda row: row.restart_count, 8),
    _moment("submit", "Submit", "when the job was submitted"),
    _moment("start", "Start", "when the run started"),
    _moment("end", "End", "when the run ended"),
    _sum("jobs", "Jobs", "job runs", "count", "job_count", 8),
    _sum("held", "Held", "elapsed x gres/salus count, without suspended time", "time", "held_ns"),
    _sum("suspended", "Suspended", "time suspended; not part of held", "time", "suspended_ns"),
    _sum("elapsed", "Elapsed", "wall time of the runs, without suspended time", "time", "elapsed_ns"),
    _sum("wait", "Wait", "mean wait in Slurm's queue", "time", "queue_wait_mean_ns"),
    _sum("occupied", "Occupied", "busy time plus a share of idle time, by charge", "time", "occupied_ns"),
    _sum("busy", "Busy", "time running iterations; k at the same time count 1/k each", "time", "busy_ns"),
    _sum("gatewait", "GateWait", "time spent waiting for a grant", "time", "gate_wait_ns"),
    _sum("outside", "Outside", "time outside iterations", "time", "outside_ns"),
    _sum("entitled", "Entitled", "fair share, by weight, of the time that jobs wanted", "time", "entitled_ns"),
    _sum("alone", "Alone", "iterations x solo time + time outside; n/a if unknown", "time", "alone_ns"),
    _sum("efficiency", "Eff", "busy / occupied", "part", "efficiency", 7),
    _sum("gain", "Gain", "sharing gain: alone / occupied; n/a if unknown", "ratio", "sharing_gain", 7),
    _sum("slowdown", "Slowdown", "elapsed / alone; n/a if unknown", "ratio", "slowdown", 8),
    _sum("saved", "MemSaved", "sum of the jobs' peaks minus memory held", "memory", "memory_saved_mib_ms", 12),
    _sum("jain", "Jain", "fairness index of achieved over entitled", "ratio", "jain", 6),
    _sum("iterations", "Iterations", "iterations run", "count", "iteration_count"),
    _sum("handovers", "Handovers", "grants handed over to another session", "count", "handover_count", 9),
)

DEFAULTS: dict[ReportKind, str] = {
    ReportKind.SUMMARY: "account%-24,held,occupied,busy,efficiency,gain,saved,jain",
    ReportKind.CLUSTER: "cluster%-12,jobs,held,occupied,busy,efficiency,gain,slowdown,saved,jain",
    ReportKind.ACCOUNT: "account%-24,jobs,held,occupied,busy,efficiency,gain,saved,jain",
    ReportKind.USER: "user%-24,jobs,held,occupied,busy,efficiency,gain,saved,jain",
    ReportKind.DEVICE: "node%-12,device%-24,model%-18,jobs,occupied,busy,efficiency,saved,jain",
    ReportKind.JOB: "jobid%-14,jobname,user,account,state,start,held,occupied,busy,efficiency,gain,slowdown",
    ReportKind.PROFILE: "user%-12,signature%-20,model%-18,occupied,busy,alone,efficiency,gain,slowdown,iterations",
}

# Without the tree, the user needs a column of its own.
FLAT_SUMMARY = "account,user,held,occupied,busy,efficiency,gain,saved,jain"


def parse_format(text: str) -> list[ReportColumn]:
    """The columns that --format selects; RequestError with the closest name for an unknown field."""
    by_name = {field.name: field for field in FIELDS}
    columns: list[ReportColumn] = []
    for piece in text.split(","):
        match = _PIECE.fullmatch(piece.strip())
        field = by_name.get(match[1].lower()) if match else None
        if match is None or field is None:
            near = difflib.get_close_matches(piece.partition("%")[0].lower().strip(), by_name, 1)
            hint = f"did you mean {near[0]}?" if near else "see salus-acct report --helpformat"
            raise RequestError(f"unknown field: {piece.strip()!r}; {hint}")
        width = int(match[2] or field.width)
        columns.append(ReportColumn(field, abs(width), width < 0))
    return columns


@dataclass(frozen=True)
class Scale:
    """How values are formatted. Percent and the Per units are relative to `total`."""

    unit: TimeUnit | None
    total: Measures
    memory_unit: str = ""
    is_converted: bool = True
    moment_style: str = "standard"

    def text(self, field: Field, row: ReportRow) -> str:
        """The value of a field in a row: n/a if it is unknown, empty if it does not apply."""
        value = field.value_of(row)
        if value is None or (row.job and row.depth and field.nature not in ("text", "moment") and not value):
            # Sessions have only counts; time is metered per job.
            if row.job and row.depth:
                return ""
            has_usage = row.measures.usage_count > 0 or row.measures.job_count > 0
            return "n/a" if has_usage and field.nature != "count" else ""
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
        """Device time in the selected unit; [D-]HH:MM:SS without one."""
        whole = field.value_of(ReportRow(measures=self.total))
        part = span_ns / whole if isinstance(whole, int) and whole else None
        percent = "n/a" if part is None else f"{part:.2%}"
        seconds = span_ns / SECOND_NS
        match self.unit:
            case None:
                return format_duration(span_ns)
            case TimeUnit.PERCENT:
                return percent
            case TimeUnit.HOURS | TimeUnit.HOUR_PER:
                text = f"{seconds / 3600:.2f}"
            case TimeUnit.MINUTES | TimeUnit.MINUTE_PER:
                text = f"{seconds / 60:.1f}"
            case TimeUnit.SECONDS | TimeUnit.SECOND_PER:
                text = f"{seconds:.0f}"
        return f"{text}({percent})" if self.unit.endswith("Per") else text

    def memory(self, mib_ms: int) -> str:
        """Memory over time in MiB-hours or larger units, scaled as in sacct."""
        amount, step = mib_ms / _HOUR_MS, 0
        if not self.is_converted:
            return f"{amount:.2f}M.h"
        if self.memory_unit:
            power = "KMGTP".index(self.memory_unit) - 1
            return f"{amount / 1024**power:.2f}{self.memory_unit}.h"
        while abs(amount) >= 1024 and step < len(_MEMORY_STEPS) - 1:
            amount, step = amount / 1024, step + 1
        return f"{amount:.2f}{_MEMORY_STEPS[step]}.h"
