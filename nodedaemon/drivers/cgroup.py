"""Which Slurm job a process belongs to, read from its cgroup, where the process itself cannot lie.

Known forms (a node name may prefix the scope or the root where several slurmd run on a host):
  v1   /slurm/uid_1000/job_123/step_0/task_0, /slurm_node1/uid_1000/job_123/...
  v2   /system.slice/slurmstepd.scope/job_123/step_0/user/task_0, /system.slice/node1_slurmstepd.scope/job_123/...
  26.05 names the job by SLUID: /system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0
Sites without cgroups are served by Slurm's own pid list, `scontrol listpids`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from nodedaemon.core.errors import OperatingError

PROC = Path("/proc")
_V1 = re.compile(r"^/slurm(?:_[^/]+)?/uid_(?P<uid>\d+)/job_(?P<job>\d+)(?:/step_(?P<step>[^/]+))?(?:/|$)")
_V2 = re.compile(
    r"^/(?:system\.slice/)?(?:[^/]+_)?slurmstepd\.scope/"
    r"(?:job_(?P<job>\d+)|(?P<sluid>s[0-9A-HJKMNP-TV-Z]{13}))(?:/step_(?P<step>[^/]+))?(?:/|$)"
)
_LISTPIDS_TIMEOUT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class JobPlace:
    """Where Slurm keeps a process: one of `job` and `sluid` is known."""

    job: str | None
    sluid: str | None
    step: str | None


def place_of_cgroup(text: str) -> JobPlace | None:
    """Find the job in the text of /proc/PID/cgroup; None for a process that Slurm does not hold."""
    for line in text.splitlines():
        path = line.split(":", 2)[-1]
        if found := _V1.match(path):
            return JobPlace(found["job"], None, found["step"])
        if found := _V2.match(path):
            return JobPlace(found["job"], found["sluid"], found["step"])
    return None


def job_group(pid: int, proc: Path = PROC) -> str:
    """The version 2 cgroup of the Slurm job that holds a process, as a path below the mount; "" where it has none."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        if line.startswith("0::") and (found := _V2.match(line[3:])):
            end = found.end("job") if found["job"] else found.end("sluid")
            return line[3 : 3 + end]
    return ""


def place_of_process(pid: int, proc: Path = PROC) -> JobPlace | None:
    try:
        return place_of_cgroup((proc / str(pid) / "cgroup").read_text())
    except OSError:
        return None


def parse_listpids(text: str) -> dict[int, JobPlace]:
    """Read `scontrol listpids`: PID JOBID STEPID LOCALID GLOBALID, with a header line; -1 marks an unknown pid."""
    places: dict[int, JobPlace] = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 3 and fields[0].isdigit() and fields[1].isdigit():
            places[int(fields[0])] = JobPlace(fields[1], None, fields[2])
    return places


def list_pids(node: str, directory: str = "") -> dict[int, JobPlace]:
    """Ask Slurm for the pids of all steps on `node` (about 11 ms); an empty answer where Slurm is not installed."""
    found = shutil.which(str(Path(directory, "scontrol")) if directory else "scontrol")
    if found is None:
        return {}
    try:
        answer = subprocess.run(  # noqa: S603  the command is found on the daemon's own PATH
            [found, "listpids", "*", node],
            capture_output=True,
            text=True,
            timeout=_LISTPIDS_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OperatingError(f"list pids: scontrol: {error}; is slurmd up?") from error
    return parse_listpids(answer.stdout)
