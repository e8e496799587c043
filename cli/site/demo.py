"""`salus demo`: real PyTorch jobs of two users share host devices of a private Slurm cluster, from sbatch to report.

Creates no system user and leaves nothing behind but the HTML report; on Ctrl-C too. Where it fails, the logs stay.
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.entry import FailedError
from nodedaemon.core.errors import SalusError
from nodedaemon.core.types import GIB, MIB

if TYPE_CHECKING:
    from slurm_plugin.cluster.control import Cluster

ROOT = Path(__file__).resolve().parents[2]
#: The view is printed when other jobs run than before, and otherwise this often.
VIEW_SECONDS = 10.0
POLL_SECONDS = 0.5
COMMAND_SECONDS = 60.0
TAIL_LINES = 5
LOGS = ("supervisor.log", "log/*", "mysql/mysqld.log", "munge/munged.log", "work/out-*.txt")
INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Submission:
    """One sbatch of the demo, as a user would type it."""

    user: str
    told: str
    options: tuple[str, ...]
    program: str
    arguments: tuple[str, ...]

    @property
    def command(self) -> str:
        return " ".join(["python", f"examples/{self.program}", *self.arguments])


SUBMISSIONS = (
    Submission(
        "games",
        "a sweep of 6 CNN trainings; the first task is measured, then the others share",
        ("--job-name=sweep", "--array=0-5"),
        "cnn.py",
        ("--iterations", "50"),
    ),
    Submission(
        "news",
        "a long transformer training; it declares its memory, so it may share from the start",
        ("--job-name=train", "--salus-mem=400M,64M"),
        "transformer.py",
        ("--iterations", "100"),
    ),
    Submission(
        "news",
        "an inference loop of the high class: five requests a second, served before the rest",
        ("--job-name=serve", "--salus-class=high", "--salus-mem=320M,32M"),
        "inference.py",
        ("--iterations", "80", "--interval", "0.2"),
    ),
)


class Told:
    """What the demo says, with the seconds since it began."""

    def __init__(self) -> None:
        self.begun = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begun

    def say(self, line: str) -> None:
        print(f"demo: {self.seconds:4.0f} s  {line}", flush=True)

    def show(self, command: str, output: str) -> None:
        print(f"  $ {command}", flush=True)
        print("".join(f"  {line}\n" for line in output.splitlines()), flush=True)


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the cluster up and say how to use it.")] = False,
    report: Annotated[Path, typer.Option("--report", metavar="FILE", help="Where the HTML report goes.")] = Path(
        "build/demo/report.html"
    ),
    seconds: Annotated[int, typer.Option("--seconds", min=30, help="Give up after that long.")] = 420,
) -> None:
    """Show Salus at work: a private Slurm cluster, real PyTorch jobs by sbatch, and the report. Needs root."""
    told = Told()
    try:
        _play(told, report, seconds, is_kept=keep)
    except KeyboardInterrupt:
        told.say("interrupted; nothing is left behind")
        raise typer.Exit(INTERRUPTED) from None
    print(report.resolve())


def _play(told: Told, report: Path, seconds: int, *, is_kept: bool) -> None:
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
        # Between two requests the server gives its lane back, else nobody of a lower class would run beside it.
        salus_lines=("Policy=priority", "IdleRelease=20ms", "HighPartitions=main", "PartitionName=main ProbeTasks=1"),
    )
    is_whole = False
    with _interrupts():
        try:
            told.say("1/4 a private Slurm cluster: munge, MariaDB, slurmdbd, slurmctld, slurmd, salus-admitd, salusd")
            cluster = control.up(plan, say=_say_step, owner_pid=None if is_kept else os.getpid())
            told.say("2/4 two users submit real PyTorch jobs; nobody reserves a whole device")
            numbers = _submit(cluster, told)
            told.say("3/4 the jobs run; this takes half a minute on an idle machine")
            _watch(cluster, told, numbers, seconds)
            told.say("4/4 who used the devices, and what sharing gained")
            # Slurm's own times and names, as a timer does it at a site.
            _salus(cluster, "salus-acct", "reconcile")
            told.show("salus-acct report -t Seconds", _salus(cluster, "salus-acct", "report", "-t", "Seconds"))
            report.parent.mkdir(parents=True, exist_ok=True)
            _salus(cluster, "salus-acct", "report", "--html", str(report.resolve()))
            is_whole = True
        except SalusError as error:
            _end(control.Cluster(plan), told)
            kept = report.resolve().parent / "failed"
            _keep_logs(base, kept, str(error), told)
            raise type(error)(str(error).replace(str(base), str(kept))) from error
        finally:
            if not (is_whole and is_kept):
                _end(control.Cluster(plan), told)
                shutil.rmtree(base, ignore_errors=True)
    if is_kept:
        _say_how_to_use(plan.directory, told)
    told.say("done; the page with the lanes over time:")


@contextmanager
def _interrupts() -> Iterator[None]:
    """A closed terminal and `kill` end the demo as Ctrl-C does."""

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


def _end(cluster: Cluster, told: Told) -> None:
    # A second Ctrl-C must not leave half a cluster behind.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if cluster.plan.path("plan.json").exists():
        told.say("ending the cluster")
        cluster.down(keep=True)


def _keep_logs(base: Path, kept: Path, why: str, told: Told) -> None:
    """Move the cluster's logs to where they stay, and show the ends of those that tell why."""
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    logs = [path for pattern in LOGS for path in sorted(base.glob(pattern)) if path.is_file() and path.stat().st_size]
    for path in logs:
        shutil.copyfile(path, kept / path.name)
    # The part that the error names; where it names none, those that say why nodes and jobs do not start.
    named = [path for path in logs if path.stem in why]
    for path in named or [path for path in logs if path.name.startswith(("slurmctld.log", "slurmd.", "salusd."))]:
        lines = path.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        told.show(f"tail {kept / path.name}", "\n".join(lines))
    if (kept / "supervisor.log").exists():
        told.show(f"tail {kept / 'supervisor.log'}", (kept / "supervisor.log").read_text(errors="replace")[-2000:])
    told.say(f"failed; the logs are kept in {kept}")


def _say_how_to_use(directory: Path, told: Told) -> None:
    program = Path(sys.executable).with_name("salus")
    salus = f"{program if program.exists() else 'salus'} cluster"
    told.say(f"the cluster stays up, in {directory}")
    print(f"  a shell of its user games:  {salus} exec --dir {directory} --user games -- bash")
    print("  and there, for instance:    sbatch --gres=salus:1 --wrap 'python examples/cnn.py'; squeue; salus top")
    print(f"  to end it:                  {salus} down --dir {directory}", flush=True)


def _submit(cluster: Cluster, told: Told) -> list[str]:
    work = cluster.plan.path("work")
    shutil.copytree(ROOT / "examples", work / "examples")
    for path in [work / "examples", *(work / "examples").rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    numbers = []
    for submission in SUBMISSIONS:
        told.say(f"{submission.user} submits {submission.told}")
        options = ["--gres=salus:1", *submission.options]
        done = cluster.run(
            ["sbatch", *options, "--output=out-%x-%A_%a.txt", "--wrap", submission.command], submission.user
        )
        if done.returncode != 0:
            raise FailedError(f"demo: sbatch failed: {done.stderr.strip()}")
        told.show(f"sbatch {' '.join(options)} --wrap '{submission.command}'", done.stderr + done.stdout)
        numbers.append(done.stdout.split()[-1])
    return numbers


def _watch(cluster: Cluster, told: Told, numbers: list[str], seconds: float) -> None:
    """Show `salus top` as the jobs come and go, until the queue is empty; then how each job ended."""
    running: set[str] = set()
    next_view = 0.0
    while lines := cluster.run(["squeue", "-h", "-r", "-o", "%A %t"]).stdout.split("\n")[:-1]:
        if told.seconds > seconds:
            raise FailedError("demo: jobs did not end in time; a slow machine may need --seconds with more")
        now_running = {line.split()[0] for line in lines if line.endswith(" R")}
        if now_running != running or told.seconds >= next_view:
            told.say(f"{len(now_running)} jobs run, {len(lines) - len(now_running)} wait")
            if now_running:
                told.show("salus top", _salus(cluster, "salus", "top", "--once"))
            running, next_view = now_running, told.seconds + VIEW_SECONDS
        time.sleep(POLL_SECONDS)
    fields = "JobID%-8,JobName%-8,User%-8,State%-12,Elapsed,AllocTRES%-60"
    ended = cluster.run(["sacct", "-X", "-a", "-o", fields, "-j", ",".join(numbers)]).stdout
    told.show("sacct -X -a", ended)
    failed = [line for line in ended.splitlines()[2:] if line.strip() and "COMPLETED" not in line]
    if failed:
        name = failed[0].split()[0]
        output = "".join(path.read_text()[-400:] for path in cluster.plan.path("work").glob(f"out-*-{name}*.txt"))
        raise FailedError(f"demo: a job did not complete: {failed[0].strip()}: {output.strip() or 'no output'}")


def _salus(cluster: Cluster, *argv: str) -> str:
    """Run one of our own commands as root on the node, and return what it prints."""
    node = {"SLURMD_NODENAME": cluster.plan.nodes[0], "COLUMNS": "110"}
    done = cluster.run(list(argv), None, COMMAND_SECONDS, **node)
    if done.returncode != 0:
        raise FailedError(f"demo: {' '.join(argv[:2])}: {done.stderr.strip()}")
    return done.stdout
