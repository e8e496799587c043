"""Finds the Slurm job of a process in its cgroup, which the process cannot forge.

Known forms (where several slurmd run on a host, a node name may precede the scope or follow the root):
  v1   /slurm/uid_1000/job_123/step_0/task_0, /slurm_node1/uid_1000/job_123/...
  v2   /system.slice/slurmstepd.scope/job_123/step_0/user/task_0, /system.slice/node1_slurmstepd.scope/job_123/...
  26.05 names the job by SLUID: /system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0
On sites without cgroups, Slurm's own list of pids is used (`scontrol listpids`).

Only root can create a cgroup at the root of a hierarchy or in Slurm's scope, but a job may choose any names for the
cgroups below its own. So a path must match from its start, and the first job in it decides. A path outside the daemon's
own cgroup namespace starts with `/..` and matches nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from nodedaemon.core.errors import OperatingError
from nodedaemon.drivers.procfs import PROC, read_lines

_V1 = re.compile(rb"/slurm(?:_[^/]+)?/uid_\d+/job_(?P<job>\d+)(?:/step_(?P<step>[^/]+))?(?:/|\Z)")
_V2 = re.compile(
    rb"/(?:system\.slice/)?(?:[^/]+_)?slurmstepd\.scope/"
    rb"(?:job_(?P<job>\d+)|(?P<sluid>s[0-9A-HJKMNP-TV-Z]{13}))(?:/step_(?P<step>[^/]+))?(?:/|\Z)"
)
_LISTPIDS_TIMEOUT_S = 2.0


class JobPlace(NamedTuple):
    """The job and step of a process. Either `job` or `sluid` is set."""

    job: str | None
    sluid: str | None
    step: str | None


def place_of_process(pid: int, proc: Path = PROC) -> JobPlace | None:
    """The place of a process, from its cgroups; None if it belongs to no Slurm job."""
    places = [place for line in _cgroup_lines(pid, proc) if (place := _place_of_line(line)) is not None]
    jobs = {(place.job, place.sluid) for place in places}
    # Every hierarchy of Slurm names the same job. If not, none of them can be trusted.
    return places[0] if len(jobs) == 1 else None


def job_group(pid: int, proc: Path = PROC) -> str:
    """The version 2 cgroup of a process's Slurm job, as a path below the mount; "" if there is none."""
    for line in _cgroup_lines(pid, proc):
        if line.startswith(b"0::") and (found := _V2.match(line, 3)):
            return os.fsdecode(line[3 : found.end("job" if found["job"] else "sluid")])
    return ""


def _cgroup_lines(pid: int, proc: Path) -> list[bytes]:
    return read_lines(proc / str(pid) / "cgroup")


def _place_of_line(line: bytes) -> JobPlace | None:
    """A line is HIERARCHY:CONTROLLERS:PATH, and version 2 is hierarchy 0."""
    hierarchy, _, rest = line.partition(b":")
    path = rest.partition(b":")[2]
    found = (_V2 if hierarchy == b"0" else _V1).match(path)
    if found is None:
        return None
    groups = {name: None if value is None else os.fsdecode(value) for name, value in found.groupdict().items()}
    return JobPlace(groups["job"], groups.get("sluid"), groups["step"])


def parse_listpids(text: str) -> dict[int, JobPlace]:
    """Parse the output of `scontrol listpids`: PID JOBID STEPID LOCALID GLOBALID after a header. -1: no such pid."""
    places: dict[int, JobPlace] = {}
    for line in text.split("\n"):
        fields = line.split()
        if len(fields) >= 3 and fields[0].isdigit() and fields[1].isdigit():
            places[int(fields[0])] = JobPlace(fields[1], None, fields[2])
    return places


def list_pids(node: str, directory: str = "") -> dict[int, JobPlace]:
    """Ask Slurm for the pids of all steps on `node` (about 11 ms). Without Slurm the answer is empty."""
    found = shutil.which("scontrol", path=directory or None)
    if found is None:
        return {}
    try:
        answer = subprocess.run(  # noqa: S603  the command is found on the daemon's own PATH
            [found, "listpids", "*", node],
            capture_output=True,
            text=True,
            timeout=_LISTPIDS_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OperatingError(f"list pids: scontrol: {error}; is slurmd up?") from error
    return parse_listpids(answer.stdout)
