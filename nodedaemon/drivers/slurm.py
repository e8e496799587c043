"""Runs Slurm's commands on this node: the processes of its steps, the state of a job, a longer time limit.

A command that takes too long, or whose output is not understood, raises `OperatingError`. So no caller draws a
conclusion from a Slurm that is absent, down or slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
from dataclasses import dataclass

from nodedaemon.core.errors import OperatingError
from nodedaemon.core.types import JobId
from nodedaemon.drivers.cgroup import parse_listpids
from nodedaemon.wire.control import JobAtStart
from nodedaemon.wire.delimited import new_delimiter, squeue_format, squeue_rows
from nodedaemon.wire.segment import find_segment

#: States in which a job holds its devices or its Epilog runs.
HOLDING_STATES = frozenset(
    {"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED", "STAGE_OUT", "SIGNALING", "RESIZING"}
)
_COLUMNS = (("JobID", 32), ("State", 32), ("RestartCnt", 16))
_START_COLUMNS = (
    *_COLUMNS, ("UserID", 16), ("tres-per-node", 512), ("Account", 64), ("QOS", 64), ("Partition", 64),
    ("admin_comment", 2048),
)  # fmt: skip
SALUS_TRES = re.compile(r"(?:^|,)gres[:/]salus(?:[:=,]|$)")


class UnknownJobError(OperatingError):
    """slurmctld does not know the job."""


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of a job at slurmctld; `state` is empty if it does not know the id."""

    state: str
    restart_count: int = 0

    def is_over(self, restart_count: int) -> bool:
        """Whether the run with this restart count has ended."""
        return self.state not in HOLDING_STATES or self.restart_count > restart_count


class NodeCommands:
    """Slurm's commands, for the daemon of `node`."""

    def __init__(self, node: str, directory: str = "", timeout_s: float = 10.0) -> None:
        self._node = node
        self._directory = directory
        self._timeout_s = timeout_s

    @property
    def is_installed(self) -> bool:
        return self._find("scontrol") is not None

    async def step_pids(self) -> dict[JobId, set[int]]:
        """Processes of every step, by job. Jobs without a step, or with a dead slurmstepd, are missing."""
        # The node is named because several slurmd may share a host. The exit status is also 1 if there is no step.
        _, output, errors = await self._run("scontrol", "listpids", "*", self._node)
        if not output.startswith("PID"):
            raise OperatingError(f"Slurm: scontrol listpids: {_last(errors)}; is slurmd of {self._node} up?")
        found: dict[JobId, set[int]] = {}
        for pid, place in parse_listpids(output).items():
            found.setdefault(JobId(place.job or ""), set()).add(pid)
        return found

    async def start(self, job: JobId) -> JobAtStart | None:
        """A job that holds its devices; None if it does not, or if its segment and its TRES do not both name Salus."""
        try:
            rows = await self._squeue(job, _START_COLUMNS, "--states=all")
        except UnknownJobError:
            return None
        if not rows:
            raise OperatingError(f"Slurm: squeue: job {job}: an empty answer; is slurmctld up?")
        for state, restarts, uid, tres, account, qos, partition, comment in rows:
            segment = find_segment(comment)
            if state in HOLDING_STATES and segment and SALUS_TRES.search(tres) and uid.isdigit():
                return JobAtStart(
                    uid=int(uid),
                    restart=int(restarts) if restarts.isdigit() else 0,
                    account=account,
                    qos=qos,
                    partition=partition,
                    segment=segment,
                )
        return None

    async def job(self, job: JobId) -> JobState:
        try:
            rows = await self._squeue(job, _COLUMNS, "--states=all")
        except UnknownJobError:
            return JobState("")
        for state, restarts in rows:
            if state:
                return JobState(state, int(restarts) if restarts.isdigit() else 0)
        raise OperatingError(f"Slurm: squeue: job {job}: an empty answer; is slurmctld up?")

    async def _squeue(self, job: JobId, columns: tuple[tuple[str, int], ...], *options: str) -> list[list[str]]:
        """The columns of a job after its id. The id of an array also selects its tasks, which are left out."""
        delimiter = new_delimiter()
        wanted = squeue_format(columns, delimiter)
        status, output, errors = await self._run("squeue", "--noheader", *options, f"--jobs={job}", wanted)
        if status != 0:
            kind = UnknownJobError if "Invalid job id" in errors else OperatingError
            raise kind(f"Slurm: squeue: job {job}: {_last(errors)}; is slurmctld up?")
        return [cells for number, *cells in squeue_rows(output, columns, delimiter) if number == job]

    async def extend_limit(self, job: JobId, minutes: int) -> None:
        """Add `minutes` to a running job's time limit."""
        status, _, errors = await self._run("scontrol", "update", f"jobid={job}", f"timelimit=+{minutes}")
        if status != 0:
            raise OperatingError(f"Slurm: scontrol update: job {job}: {_last(errors)}; is salusd root?")

    def _find(self, program: str) -> str | None:
        return shutil.which(program, path=self._directory or None)

    async def _run(self, program: str, *argv: str) -> tuple[int, str, str]:
        found = self._find(program)
        if found is None:
            raise OperatingError(f"Slurm: {program}: not found; set SlurmBinDir or PATH")
        process = await asyncio.create_subprocess_exec(
            found, *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(self._timeout_s):
                output, errors = await process.communicate()
        except TimeoutError as error:
            raise OperatingError(f"Slurm: {program}: no answer in {self._timeout_s:g} s; see slurmd's log") from error
        finally:
            # This also runs if we are cancelled: a stopping daemon does not wait for the command.
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        return process.returncode or 0, output.decode(errors="replace"), errors.decode(errors="replace")


def _last(errors: str) -> str:
    lines = errors.strip().split("\n")
    return lines[-1] or "an empty answer"
