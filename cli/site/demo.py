"""`salus demo`: PyTorch jobs of two users share the devices of a private Slurm cluster, from sbatch to the report.

The demo creates no system user and leaves only the HTML report behind, even after Ctrl-C. If it fails, it keeps the
logs.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from cli.entry import FailedError
from nodedaemon.core.errors import SalusError
from nodedaemon.core.types import GIB, MIB

if TYPE_CHECKING:
    from slurm_plugin.cluster.control import PrivateCluster

ROOT = Path(__file__).resolve().parents[2]
#: The view is printed when the set of running jobs changes, and at least this often.
VIEW_SECONDS = 10.0
POLL_SECONDS = 0.5
COMMAND_SECONDS = 60.0
TAIL_LINES = 5
LOGS = ("supervisor.log", "log/*", "mysql/mysqld.log", "munge/munged.log", "work/out-*.txt")


class DemoJob(NamedTuple):
    """One sbatch command of the demo."""

    user: str
    description: str
    options: tuple[str, ...]
    program: str
    arguments: tuple[str, ...]

    @property
    def command(self) -> str:
        return " ".join(["python", f"examples/{self.program}", *self.arguments])


JOBS = (
    DemoJob(
        "games",
        "a sweep of 6 CNN training runs; the first task is measured, then the others share",
        ("--job-name=sweep", "--array=0-5"),
        "cnn.py",
        ("--iterations", "50"),
    ),
    DemoJob(
        "news",
        "a long transformer training; it declares its memory, so it can share from the start",
        ("--job-name=train", "--salus-mem=400M,64M"),
        "transformer.py",
        ("--iterations", "100"),
    ),
    DemoJob(
        "news",
        "an inference loop in the high class: five requests per second, served before other jobs",
        ("--job-name=serve", "--salus-class=high", "--salus-mem=320M,32M"),
        "inference.py",
        ("--iterations", "80", "--pause", "0.2"),
    ),
)


class DemoOutput:
    """Prints what happens, with the seconds since the start."""

    def __init__(self) -> None:
        self.started = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def say(self, line: str) -> None:
        print(f"demo: {self.seconds:4.0f} s  {line}", flush=True)

    def show(self, command: str, output: str) -> None:
        print(f"  $ {command}", flush=True)
        print("".join(f"  {line}\n" for line in output.splitlines()), flush=True)


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Keep the cluster running and print how to use it.")] = False,
    report: Annotated[Path, typer.Option("--report", metavar="FILE", help="File for the HTML report.")] = Path(
        "build/demo/report.html"
    ),
    seconds: Annotated[int, typer.Option("--seconds", min=30, help="Time limit in seconds.")] = 420,
) -> None:
    """Show Salus at work: a private Slurm cluster, PyTorch jobs submitted with sbatch, and the report. Needs root."""
    output = DemoOutput()
    try:
        _run_demo(output, report, seconds, is_kept=keep)
    except KeyboardInterrupt:
        output.say("interrupted; everything was removed")
        raise typer.Exit(128 + signal.SIGINT) from None
    print(report.resolve())


def _run_demo(output: DemoOutput, report: Path, seconds: int, *, is_kept: bool) -> None:
    from slurm_plugin.cluster import control
    from slurm_plugin.cluster.plan import ClusterPlan

    control.check_host()
    base = Path(tempfile.mkdtemp(prefix="salus-demo-"))
    plan = ClusterPlan(
        directory=base,
        node_count=1,
        device_count=2,
        device_bytes=2 * GIB,
        lane_reserve_bytes=256 * MIB,
        name="demo",
        # Between two requests the server must release its lane, or jobs of a lower class would never run.
        salus_lines=("Policy=priority", "IdleRelease=20ms", "HighPartitions=main", "PartitionName=main ProbeTasks=1"),
    )
    is_complete = False
    with _interrupts():
        try:
            output.say("1/4 a private Slurm cluster: munge, MariaDB, slurmdbd, slurmctld, slurmd, salus-admitd, salusd")
            cluster = control.up(plan, say=_say_step, owner_pid=None if is_kept else os.getpid())
            output.say("2/4 two users submit PyTorch jobs; no job reserves a whole device")
            job_ids = _submit(cluster, output)
            output.say("3/4 the jobs run; this takes half a minute on an idle machine")
            _watch(cluster, output, job_ids, seconds)
            output.say("4/4 the report: who used the devices, and what sharing gained")
            # Adopt Slurm's times and names; at a site, a timer does this.
            _salus(cluster, "salus-acct", "reconcile")
            output.show("salus-acct report -t Seconds", _salus(cluster, "salus-acct", "report", "-t", "Seconds"))
            report.parent.mkdir(parents=True, exist_ok=True)
            _salus(cluster, "salus-acct", "report", "--html", str(report.resolve()))
            is_complete = True
        except SalusError as error:
            _end(control.PrivateCluster(plan), output)
            kept = _keep_logs(base, report.resolve().parent, str(error), output)
            raise type(error)(str(error).replace(str(base), str(kept))) from error
        finally:
            if not (is_complete and is_kept):
                _end(control.PrivateCluster(plan), output)
                shutil.rmtree(base, ignore_errors=True)
    if is_kept:
        _say_how_to_use(plan.directory, output)
    output.say("done; the HTML report:")


@contextmanager
def _interrupts() -> Iterator[None]:
    """A closed terminal and `kill` end the demo in the same way as Ctrl-C."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def _say_step(line: str) -> None:
    print(f"      {line}", flush=True)


def _end(cluster: PrivateCluster, output: DemoOutput) -> None:
    # A second Ctrl-C must not interrupt the clean-up.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if cluster.plan.path("plan.json").exists():
        output.say("stopping the cluster")
        cluster.down(keep=True)


def _keep_logs(base: Path, folder: Path, why: str, output: DemoOutput) -> Path:
    """Copy the cluster's logs to a new directory in `folder`, and print the end of the relevant ones."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = Path(tempfile.mkdtemp(prefix="failed-", dir=folder))
    kept.chmod(0o755)
    logs = [path for pattern in LOGS for path in sorted(base.glob(pattern)) if path.is_file() and path.stat().st_size]
    for path in logs:
        shutil.copyfile(path, kept / path.name)
    # The logs of the daemon that the error names or, without one, of those that start nodes and jobs.
    named = [path for path in logs if path.stem in why]
    for path in named or [path for path in logs if path.name.startswith(("slurmctld.log", "slurmd.", "salusd."))]:
        lines = path.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        output.show(f"tail {kept / path.name}", "\n".join(lines))
    if (kept / "supervisor.log").exists():
        output.show(f"tail {kept / 'supervisor.log'}", (kept / "supervisor.log").read_text(errors="replace")[-2000:])
    output.say(f"failed; the logs are kept in {kept}")
    return kept


def _say_how_to_use(directory: Path, output: DemoOutput) -> None:
    program = Path(sys.executable).with_name("salus")
    salus = f"{program if program.exists() else 'salus'} cluster"
    output.say(f"the cluster keeps running, in {directory}")
    print(f"  a shell as user games:      {salus} exec --dir {directory} --user games -- bash")
    print("  in that shell, for example: sbatch --gres=salus:1 --wrap 'python examples/cnn.py'; squeue; salus top")
    print(f"  to stop the cluster:        {salus} down --dir {directory}", flush=True)


def _submit(cluster: PrivateCluster, output: DemoOutput) -> list[str]:
    work = cluster.plan.path("work")
    shutil.copytree(ROOT / "examples", work / "examples")
    for path in [work / "examples", *(work / "examples").rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    job_ids = []
    for job in JOBS:
        output.say(f"{job.user} submits {job.description}")
        options = ["--gres=salus:1", *job.options]
        done = cluster.run(["sbatch", *options, "--output=out-%x-%A_%a.txt", "--wrap", job.command], job.user)
        if done.returncode != 0:
            raise FailedError(f"demo: sbatch failed: {done.stderr.strip()}")
        output.show(f"sbatch {' '.join(options)} --wrap '{job.command}'", done.stderr + done.stdout)
        job_ids.append(done.stdout.split()[-1])
    return job_ids


def _watch(cluster: PrivateCluster, output: DemoOutput, job_ids: list[str], seconds: float) -> None:
    """Print `salus top` while jobs run, and how each job ended when the queue is empty."""
    running: set[str] = set()
    next_view = 0.0
    while lines := cluster.run(["squeue", "-h", "-r", "-o", "%A %t"]).stdout.split("\n")[:-1]:
        if output.seconds > seconds:
            raise FailedError("demo: the jobs did not end in time; on a slow machine, use a larger --seconds")
        now_running = {line.split()[0] for line in lines if line.endswith(" R")}
        if now_running != running or output.seconds >= next_view:
            output.say(f"{len(now_running)} jobs running, {len(lines) - len(now_running)} waiting")
            if now_running:
                output.show("salus top", _salus(cluster, "salus", "top", "--once"))
            running, next_view = now_running, output.seconds + VIEW_SECONDS
        time.sleep(POLL_SECONDS)
    fields = "JobID%-8,JobName%-8,User%-8,State%-12,Elapsed,AllocTRES%-60"
    ended = cluster.run(["sacct", "-X", "-a", "-o", fields, "-j", ",".join(job_ids)]).stdout
    output.show("sacct -X -a", ended)
    failed = [line for line in ended.splitlines()[2:] if line.strip() and "COMPLETED" not in line]
    if failed:
        name = failed[0].split()[0]
        text = "".join(path.read_text()[-400:] for path in cluster.plan.path("work").glob(f"out-*-{name}*.txt"))
        raise FailedError(f"demo: a job did not complete: {failed[0].strip()}: {text.strip() or 'no output'}")


def _salus(cluster: PrivateCluster, *argv: str) -> str:
    """Run a Salus command as root on the node and return its output."""
    node = {"SLURMD_NODENAME": cluster.plan.nodes[0], "COLUMNS": "110"}
    done = cluster.run(list(argv), None, COMMAND_SECONDS, **node)
    if done.returncode != 0:
        raise FailedError(f"demo: {' '.join(argv[:2])}: {done.stderr.strip()}")
    return done.stdout
