"""`salus demo`: real PyTorch jobs of two users share host devices of a private Slurm cluster, from sbatch to report.

Creates no system user and leaves nothing behind but the HTML report; on Ctrl-C too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.entry import FailedError
from nodedaemon.core.types import GIB, MIB

if TYPE_CHECKING:
    from slurm_plugin.cluster.control import Cluster

ROOT = Path(__file__).resolve().parent.parent
VIEW_SECONDS = 6.0
POLL_SECONDS = 0.5
COMMAND_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Submission:
    """One sbatch of the demo, as a user would type it."""

    user: str
    told: str
    options: tuple[str, ...]
    program: str
    arguments: tuple[str, ...]


SUBMISSIONS = (
    Submission(
        "games",
        "a sweep of 6 CNN trainings: the first task measures, the others then share a device",
        ("--job-name=sweep", "--array=0-5"),
        "cnn.py",
        ("--iterations", "60"),
    ),
    Submission(
        "news", "a longer transformer training", ("--job-name=train",), "transformer.py", ("--iterations", "30")
    ),
    Submission(
        "news",
        "an inference loop of the high class, which declares its memory",
        ("--job-name=serve", "--salus-class=high", "--salus-mem=320M,32M"),
        "inference.py",
        ("--iterations", "600"),
    ),
)


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the cluster up and say how to use it.")] = False,
    report: Annotated[Path, typer.Option("--report", metavar="FILE", help="Where the HTML report goes.")] = Path(
        "build/demo/report.html"
    ),
    seconds: Annotated[int, typer.Option("--seconds", min=30, help="Give up after that long.")] = 420,
) -> None:
    """Show Salus at work: a private Slurm cluster, real PyTorch jobs by sbatch, and the report. Needs root."""
    from slurm_plugin.cluster import control
    from slurm_plugin.cluster.plan import ClusterPlan

    base = Path(tempfile.mkdtemp(prefix="salus-demo-"))
    base.chmod(0o755)
    plan = ClusterPlan(
        directory=base / "c",
        node_count=1,
        device_count=2,
        device_bytes=2 * GIB,
        lane_reserve_bytes=256 * MIB,
        name="demo",
        salus_lines=("HighPartitions=main", "PartitionName=main ProbeTasks=1"),
    )
    begun = time.monotonic()
    is_kept = False
    try:
        _say("starting munge, MariaDB, slurmdbd, slurmctld, slurmd, salus-admitd and salusd as one private cluster")
        cluster = control.up(plan, say=lambda line: _say(line.strip()), owner_pid=None if keep else os.getpid())
        _run_jobs(cluster, begun + seconds)
        _show(cluster, "salus-acct report -t Seconds", "cli.acct", "report", "-t", "Seconds")
        _write_report(cluster, report)
        is_kept = keep
    finally:
        if not is_kept:
            _end(control.Cluster(plan))
            shutil.rmtree(base, ignore_errors=True)
    _say(f"done in {time.monotonic() - begun:.0f} s")
    if is_kept:
        prefix = f"salus cluster exec --dir {plan.directory}"
        _say(f"the cluster stays up; try: {prefix} -- squeue   or   {prefix} --user games -- sbatch --gres=salus:1 JOB")
        _say(f"end it with: salus cluster down --dir {plan.directory}")
    print(report.resolve())


def _say(line: str) -> None:
    print(f"demo: {line}", flush=True)


def _end(cluster: Cluster) -> None:
    if cluster.plan.path("plan.json").exists():
        _say("ending the cluster")
        cluster.down()


def _run_jobs(cluster: Cluster, deadline: float) -> None:
    from slurm_plugin.cluster.interpreter import interpreter

    python = interpreter(cluster.plan)
    work = cluster.plan.path("work")
    shutil.copytree(ROOT / "examples", work / "examples")
    for path in [work / "examples", *(work / "examples").rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    numbers = []
    for submission in SUBMISSIONS:
        command = " ".join([python, f"examples/{submission.program}", *submission.arguments])
        argv = ["sbatch", "--gres=salus:1", *submission.options, "--output=out-%x-%A_%a.txt", "--wrap", command]
        _say(f"{submission.user} submits {submission.told}")
        print(f"  $ sbatch --gres=salus:1 {' '.join(submission.options)} examples/{submission.program}", flush=True)
        done = cluster.run(argv, submission.user)
        if done.returncode != 0:
            raise FailedError(f"demo: sbatch failed: {done.stderr.strip()}")
        print("".join(f"  {line}\n" for line in (done.stderr + done.stdout).splitlines()), end="", flush=True)
        numbers.append(done.stdout.split()[-1])
    _watch(cluster, numbers, deadline)


def _watch(cluster: Cluster, numbers: list[str], deadline: float) -> None:
    """Show `salus top` every few seconds until the queue is empty, then how each job ended."""
    next_view = time.monotonic()
    while cluster.run(["squeue", "-h"]).stdout.strip():
        if time.monotonic() > deadline:
            raise FailedError("demo: jobs did not end in time; a slow machine may need --seconds with more")
        if time.monotonic() >= next_view:
            print(cluster.run(["squeue", "-o", "%.8i %.8j %.6u %.2t %.28b %R"]).stdout, end="")
            _show(cluster, "salus top --once", "cli.main", "top", "--once")
            next_view = time.monotonic() + VIEW_SECONDS
        time.sleep(POLL_SECONDS)
    fields = "JobID%-12,JobName,User,State,ExitCode,Elapsed,AllocTRES%60"
    told = cluster.run(["sacct", "-X", "-a", "-n", "-o", fields, "-j", ",".join(numbers)]).stdout
    print(told, flush=True)
    failed = [line for line in told.splitlines() if line.strip() and "COMPLETED" not in line]
    if failed:
        raise FailedError(
            f"demo: a job did not complete: {failed[0].strip()}; its output is in the cluster's work folder"
        )


def _show(cluster: Cluster, title: str, module: str, *arguments: str) -> None:
    print(f"  $ {title}", flush=True)
    done = _salus(cluster, module, *arguments)
    print(done.stdout if done.returncode == 0 else done.stderr, flush=True)


def _salus(cluster: Cluster, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    node = cluster.plan.nodes[0]
    extra = {"PYTHONPATH": str(ROOT), "SLURMD_NODENAME": node, "COLUMNS": "100"}
    return cluster.run([sys.executable, "-m", module, *arguments], None, COMMAND_SECONDS, **extra)


def _write_report(cluster: Cluster, report: Path) -> None:
    report.parent.mkdir(parents=True, exist_ok=True)
    done = _salus(cluster, "cli.acct", "report", "--html", str(report.resolve()))
    if done.returncode != 0:
        raise FailedError(f"demo: report: {done.stderr.strip()}")
    _say("the report with the lanes over time:")
