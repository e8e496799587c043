"""Slurm through its commands: `squeue --json`, `sinfo`, `scontrol`.

Callers see no difference between 22.05, 24.11 and 26.05. 22.05 has openapi v0.0.38, with plain states and numbers. The
newer releases share data parser v0.0.42, where a state is a list and a number is an object with `set`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodedaemon.wire.users import user_name
from slurm_plugin.slurm import JobChange, QueuedJob, SlurmError, SlurmNode

# The newest data parser that both 24.11 and 26.05 have.
DATA_PARSER = "v0.0.42"
DATA_PARSER_RELEASE = (23, 2)
ACTIVE_STATES = {"PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "REQUEUED"}
SINFO_FIELDS = "NodeList:128,Partition:128,StateLong:64,Gres:1024"
SINFO_WIDTHS = (128, 128, 64, 1024)


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
                [program, *argv[1:]], capture_output=True, text=True, errors="replace", timeout=self._timeout_s,
                check=False, env=self._environment,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise SlurmError(f"Slurm: {argv[0]}: no answer in {self._timeout_s:g} s; see slurmctld's log") from error
        except OSError as error:
            raise SlurmError(f"Slurm: {argv[0]}: {error.strerror}; set SlurmBinDir or PATH") from error
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines()
            raise SlurmError(f"Slurm: {' '.join(argv[:3])}: {lines[-1] if lines else f'exit status {done.returncode}'}")
        return done.stdout

    def release(self) -> tuple[int, int]:
        if self._release is None:
            # "slurm-wlm 22.05.8" on Debian, "slurm 24.11.5" elsewhere.
            major, minor = self.run("scontrol", "--version").split()[-1].split(".")[:2]
            self._release = (int(major), int(minor))
        return self._release

    def jobs(self) -> list[QueuedJob]:
        option = f"--json={DATA_PARSER}" if self.release() >= DATA_PARSER_RELEASE else "--json"
        try:
            document = json.loads(self.run("squeue", option))
        except ValueError as error:
            raise SlurmError(f"Slurm: squeue {option}: not JSON: {error}") from error
        # --json ignores squeue's default filter and includes jobs that ended minutes ago.
        return [job for job in map(read_job, document.get("jobs", [])) if job.state in ACTIVE_STATES]

    def nodes(self) -> list[SlurmNode]:
        found: dict[str, SlurmNode] = {}
        for name, partition, state, gres in self._sinfo():
            earlier = found[name].partitions if name in found else ()
            found[name] = SlurmNode(name, state, gres, (*earlier, partition.rstrip("*")))
        return list(found.values())

    def default_partition(self) -> str:
        return next((partition.rstrip("*") for _, partition, _, _ in self._sinfo() if partition.endswith("*")), "")

    def _sinfo(self) -> list[tuple[str, str, str, str]]:
        rows = []
        for line in self.run("sinfo", "--noheader", "--Node", f"--Format={SINFO_FIELDS}").splitlines():
            cells, place = [], 0
            for width in SINFO_WIDTHS:
                cells.append(line[place : place + width].strip())
                place += width
            rows.append((cells[0], cells[1], cells[2], "" if cells[3] == "(null)" else cells[3]))
        return rows

    def update_job(self, target: str, change: JobChange) -> None:
        fields = []
        if change.gres is not None:
            # Only `gres=` works: 22.05 accepts TresPerNode= but does not change the charge.
            fields.append(f"gres={change.gres}")
        if change.admin_comment is not None:
            fields.append(f"admincomment={change.admin_comment}")
        if change.is_begin_soon:
            # A job that returns to its node within a second of its Epilog starts without a Prolog (seen on 22.05), and
            # salusd would not know it.
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
    if isinstance(value, list):
        return str(value[0]) if value else ""
    return value if isinstance(value, str) else ""


def read_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def read_job(entry: Mapping[str, Any]) -> QueuedJob:
    job_id = read_number(entry.get("job_id")) or 0
    array_id = read_number(entry.get("array_job_id")) or 0
    task_id = read_number(entry.get("array_task_id"))
    waiting_tasks = read_text(entry.get("array_task_string"))
    uid = read_number(entry.get("user_id")) or 0
    target = str(job_id)
    if array_id and waiting_tasks:
        # In "2-12%1" the throttle is not part of the task list.
        target = f"{array_id}_[{waiting_tasks.partition('%')[0]}]"
    elif array_id and task_id is not None:
        target = f"{array_id}_{task_id}"
    return QueuedJob(
        id=job_id,
        target=target,
        state=read_state(entry.get("job_state")),
        uid=uid,
        user=read_text(entry.get("user_name")) or user_name(uid),
        account=read_text(entry.get("account")),
        qos=read_text(entry.get("qos")),
        partition=read_text(entry.get("partition")),
        name=read_text(entry.get("name")),
        tres_per_node=read_text(entry.get("tres_per_node")),
        admin_comment=read_text(entry.get("admin_comment")),
        reason=read_text(entry.get("state_reason")),
        nodes=read_text(entry.get("nodes")),
        array_tasks=waiting_tasks,
    )
