"""Slurm through its commands: `squeue --json`, `sinfo`, `scontrol`.

Callers see no difference between 22.05, 24.11 and 26.05. 22.05 has openapi v0.0.38, with plain states and numbers. The
newer releases share data parser v0.0.42, where a state is a list and a number is an object with `set`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from nodedaemon.wire.users import user_name
from slurm_plugin.slurm import (
    ENFORCEMENT_KEY,
    JobChange,
    QueuedJob,
    SlurmError,
    SlurmNode,
    job_target,
    read_enforcement,
    read_release,
    text_of,
)

# The newest data parser that both 24.11 and 26.05 have.
DATA_PARSER = "v0.0.42"
DATA_PARSER_RELEASE = (23, 2)
ACTIVE_STATES = {"PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "REQUEUED"}
SINFO_WIDTHS = {"NodeList": 128, "Partition": 128, "Gres": 1024}
#: The text fields of QueuedJob by their keys in squeue's JSON.
TEXT_KEYS = {
    **{name: name for name in ("account", "qos", "partition", "name", "tres_per_node", "admin_comment", "nodes")},
    "user": "user_name",
    "reason": "state_reason",
    "array_tasks": "array_task_string",
}


class SlurmCommands:
    """Runs commands from `directory` or from PATH, each for at most `timeout_s`."""

    def __init__(
        self, directory: str = "", timeout_s: float = 10.0, environment: Mapping[str, str] | None = None
    ) -> None:
        self._directory = directory
        self._timeout_s = timeout_s
        self._environment = dict(environment) if environment is not None else None
        self._release: tuple[int, int] | None = None

    def run(self, *argv: str) -> str:
        """The output of a command; SlurmError with its message otherwise."""
        program = str(Path(self._directory, argv[0])) if self._directory else argv[0]
        try:
            done = subprocess.run(
                [program, *argv[1:]], capture_output=True, timeout=self._timeout_s, check=False, env=self._environment
            )
        except subprocess.TimeoutExpired as error:
            raise SlurmError(f"Slurm: {argv[0]}: no answer in {self._timeout_s:g} s; see slurmctld's log") from error
        except OSError as error:
            raise SlurmError(f"Slurm: {argv[0]}: {error.strerror}; set SlurmBinDir or PATH") from error
        if done.returncode != 0:
            last = (done.stderr or done.stdout).decode(errors="replace").strip().rpartition("\n")[2]
            raise SlurmError(f"Slurm: {' '.join(argv[:3])}: {last or f'exit status {done.returncode}'}")
        # Not in text mode, which would turn a carriage return in a name into a newline.
        return done.stdout.decode(errors="replace")

    def release(self) -> tuple[int, int]:
        """Major and minor version, as (22, 5)."""
        if self._release is None:
            self._release = read_release(self.run("scontrol", "--version"))
        return self._release

    def enforcement(self) -> frozenset[str]:
        """What slurmctld checks of a job; see `read_enforcement`."""
        lines = (line.partition("=") for line in self.run("scontrol", "show", "config").splitlines())
        return read_enforcement(next((value for key, _, value in lines if key.strip() == ENFORCEMENT_KEY), ""))

    def jobs(self) -> list[QueuedJob]:
        option = f"--json={DATA_PARSER}" if self.release() >= DATA_PARSER_RELEASE else "--json"
        try:
            document = json.loads(self.run("squeue", option))
        except ValueError as error:
            raise SlurmError(f"Slurm: squeue {option}: not JSON: {error}") from error
        # --json ignores squeue's default filter and includes jobs that ended minutes ago.
        return [job for job in map(read_job, document.get("jobs", [])) if job.state in ACTIVE_STATES]

    def nodes(self) -> list[SlurmNode]:
        nodes: dict[str, SlurmNode] = {}
        for name, partition, gres in self._sinfo():
            earlier = nodes[name].partitions if name in nodes else ()
            nodes[name] = SlurmNode(name, gres, (*earlier, partition.rstrip("*")))
        return list(nodes.values())

    def default_partition(self) -> str:
        return next((partition.rstrip("*") for _, partition, _ in self._sinfo() if partition.endswith("*")), "")

    def _sinfo(self) -> list[list[str]]:
        """Name, partition and gres: one row per node and partition."""
        wanted = ",".join(f"{name}:{width}" for name, width in SINFO_WIDTHS.items())
        ends = list(accumulate(SINFO_WIDTHS.values(), initial=0))
        lines = self.run("sinfo", "--noheader", "--Node", f"--Format={wanted}").splitlines()
        rows = [[line[start:end].strip() for start, end in pairwise(ends)] for line in lines]
        return [["" if cell == "(null)" else cell for cell in row] for row in rows]

    def update_job(self, target: str, change: JobChange) -> None:
        fields = []
        if change.gres is not None:
            # Only `gres=` works: 22.05 accepts TresPerNode= but does not change the charge.
            fields.append(f"gres={change.gres}")
        if change.admin_comment is not None:
            fields.append(f"admincomment={change.admin_comment}")
        if change.is_begin_soon:
            # A job that returns to its node within a second of its Epilog starts without a Prolog (seen on 22.05), so
            # salusd would not know about it.
            fields.append("starttime=now+3")
        if fields:
            self.run("scontrol", "update", f"jobid={target}", *fields)
        if change.array_throttle is not None:
            # 24.11 accepts it for the array only, not for its tasks. The charge must be right before more tasks start.
            array = target.partition("_")[0]
            self.run("scontrol", "update", f"jobid={array}", f"arraytaskthrottle={change.array_throttle}")

    def requeue_job(self, target: str) -> None:
        self.run("scontrol", "requeue", target)


def read_number(value: object) -> int | None:
    """A number in any release's form; None if it is not set."""
    if isinstance(value, Mapping):
        number = value.get("number")
        return int(number) if value.get("set") and isinstance(number, int | float) else None
    return int(value) if isinstance(value, int | float) and value >= 0 else None


def read_state(value: object) -> str:
    """The base state in capitals; in a list it comes first, before flags."""
    states = value if isinstance(value, list) else [value]
    return states[0] if states and isinstance(states[0], str) else ""


def read_job(entry: Mapping[str, Any]) -> QueuedJob:
    numbers = {key: read_number(entry.get(key)) for key in ("job_id", "array_job_id", "array_task_id", "user_id")}
    texts = {field: text_of(entry, key) for field, key in TEXT_KEYS.items()}
    job_id, uid = numbers["job_id"] or 0, numbers["user_id"] or 0
    target = job_target(job_id, numbers["array_job_id"] or 0, numbers["array_task_id"], texts["array_tasks"])
    texts["user"] = texts["user"] or user_name(uid)
    return QueuedJob(id=job_id, target=target, state=read_state(entry.get("job_state")), uid=uid, **texts)
