"""Runs the jobs of a benchmark on a private Slurm cluster: submits them at their times and reads what they wrote.

Every job runs with the same script in every configuration: one thread, pinned to the core of its device. The job
reports when its first iteration ended, and the script when the job ended. sacct must show it as COMPLETED.
"""

import compileall
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from nodedaemon.core.fairness import jain
from nodedaemon.core.types import MIB
from slurm_plugin.cluster import control
from slurm_plugin.cluster.plan import ClusterPlan
from tests.support.lab import Lab, wait_for

ROOT = Path(__file__).resolve().parents[2]
USER = "games"
#: All measurements of a job depend on this script. It does not use Salus, so that all configurations can run it.
SCRIPT = """#!/bin/sh
export OMP_NUM_THREADS=1
# Memory that an iteration frees stays with the process, as with the caching allocator of a GPU.
export MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=17179869184
case "$SLURMD_NODENAME" in {cases} esac
name="$WHERE/$SLURM_JOB_NAME${{SLURM_ARRAY_TASK_ID:+-$SLURM_ARRAY_TASK_ID}}"
date +%s.%N >"$name.start"
taskset -c "${{CORES:-$core}}" "{python}" "$@" >"$name.out" 2>"$name.err"
code=$?
times >"$name.cpu"
echo "$code $(date +%s.%N) $SLURMD_NODENAME" >"$name.part"
mv "$name.part" "$name.end"
exit $code
"""


def machine_cpu_s():
    """CPU time that this machine has used since its start. Time that its host took away does not count."""
    user, nice, system, _idle, _waiting, *interrupts = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def wait_until_time(at):
    """Jobs are submitted at fixed times, so this sleeps until `at`."""
    while (left := at - time.time()) > 0:
        time.sleep(left)


class LostError(AssertionError):
    """A job failed, or never ended."""


@dataclass(frozen=True)
class Order:
    """One job to submit: when, with what options, and what it runs."""

    name: str
    submit_s: float
    options: tuple[str, ...]
    argv: tuple[str, ...]


@dataclass(frozen=True)
class Ended:
    """One job that ran: its wall-clock times and its report."""

    name: str
    submitted: float
    ended: float
    node: str
    report: dict
    cpu_s: float
    #: When its script began.
    started: float = 0.0
    #: CPU time of everything but the jobs (Slurm, the daemons, this benchmark), divided by the number of jobs.
    beside_cpu_s: float = 0.0

    @property
    def completion_s(self):
        return self.ended - self.submitted

    @property
    def startup_cpu_s(self):
        """CPU time of the job outside its iterations: interpreter, imports, end."""
        return self.cpu_s - self.report["cpu_s"]


@contextmanager
def cluster_of(device_mib, reserve_mib, *, devices=2, say, salus_lines=()):
    """A cluster with one device per node and a core for each; jobs go to the node with the fewest."""
    directory = Path(tempfile.mkdtemp(prefix="salus-"))
    directory.chmod(0o755)
    plan = ClusterPlan(
        directory=directory / "c",
        node_count=devices,
        device_count=1,
        device_bytes=device_mib * MIB,
        lane_reserve_bytes=reserve_mib * MIB,
        cores=64,
        name="bench",
        slurm_lines=("SelectTypeParameters=CR_Core,CR_LLN",),
        salus_lines=salus_lines,
    )
    # As in an installed package. Otherwise every start would compile the adaptor, because users cannot write there.
    compileall.compile_dir(ROOT / "nodedaemon" / "job", quiet=1)
    say("starting a cluster")
    cluster = control.up(plan, owner_pid=os.getpid())
    try:
        yield Stage(cluster, say)
    finally:
        cluster.down()
        shutil.rmtree(directory, ignore_errors=True)


class Stage:
    def __init__(self, cluster, say):
        self.cluster, self.say = cluster, say
        self.work = cluster.plan.path("work")
        cpus = sorted(os.sched_getaffinity(0))
        cores = {node: cpus[number % len(cpus)] for number, node in enumerate(cluster.plan.nodes)}
        cases = " ".join(f"{node}) core={core};;" for node, core in cores.items())
        self.script = self.work / "job.sh"
        self.script.write_text(SCRIPT.format(cases=cases, python=cluster.python))
        self.script.chmod(0o755)

    def program(self, name):
        """Copy a program of tests/support to where the jobs' user may read it."""
        target = self.work / name
        shutil.copyfile(ROOT / "tests" / "support" / name, target)
        target.chmod(0o644)
        return str(target)

    def folder(self, name):
        folder = self.work / name
        folder.mkdir()
        folder.chmod(0o1777)
        return folder

    def sbatch(self, folder, order, variables=""):
        """Submit a job; returns its id and the time from which it could have started."""
        # Salus refuses a request for shards, so the job is held and root sets its shards.
        shards = [option.removeprefix("--gres=") for option in order.options if option.startswith("--gres=shard")]
        options = ["--hold"] if shards else order.options
        argv = ["sbatch", "--parsable", f"--job-name={order.name}", "--output=/dev/null", *options,
                f"--export=ALL,WHERE={folder}{variables}", str(self.script), *order.argv]  # fmt: skip
        submitted = time.time()
        done = self.cluster.run(argv, USER)
        if done.returncode != 0:
            raise LostError(f"{order.name}: sbatch failed: {done.stderr.strip()}")
        number = done.stdout.strip().splitlines()[-1].partition(";")[0]
        changes = (["update", f"JobId={number}", f"gres={shards[0]}"], ["release", number]) if shards else ()
        for change in changes:
            submitted = time.time()
            if (report := self.cluster.run(["scontrol", *change])).returncode != 0:
                raise LostError(f"{order.name}: scontrol {' '.join(change)}: {report.stderr.strip()}")
        return number, submitted

    def run(self, name, orders, seconds=300.0):
        """Submit every job at its time, wait for all, and return them by name. LostError if one fails or never ends."""
        folder = self.folder(name)
        begun, cpu_s, submitted, numbers = time.time(), machine_cpu_s(), {}, {}
        for order in sorted(orders, key=lambda order: order.submit_s):
            wait_until_time(begun + order.submit_s)
            numbers[order.name], submitted[order.name] = self.sbatch(folder, order)
        self.wait_ends(folder, [order.name for order in orders], begun + seconds)
        cpu_s = machine_cpu_s() - cpu_s
        ended = {order.name: self.read(folder, order.name, submitted[order.name]) for order in orders}
        beside_cpu_s = max(0.0, cpu_s - sum(job.cpu_s for job in ended.values())) / len(ended)
        ended = {name: replace(job, beside_cpu_s=beside_cpu_s) for name, job in ended.items()}
        self.wait_empty(name)
        self.check_accounting(name, numbers.values())
        return ended

    def run_array(self, name, order, count, seconds=300.0):
        """Submit an array, wait for all its tasks, and return them by name."""
        folder = self.folder(name)
        order = replace(order, options=(*order.options, f"--array=1-{count}"))
        number, submitted = self.sbatch(folder, order)
        names = [f"{order.name}-{task}" for task in range(1, count + 1)]
        self.wait_ends(folder, names, submitted + seconds)
        ended = {name: self.read(folder, name, submitted) for name in names}
        self.wait_empty(name)
        self.check_accounting(name, [f"{number}_{task}" for task in range(1, count + 1)])
        return ended

    def wait_ends(self, folder, names, deadline):
        wanted = {f"{name}.end" for name in names}
        while missing := wanted - {path.name for path in folder.glob("*.end")}:
            if time.time() > deadline:
                queue = self.cluster.run(["squeue", "-o", "%i %j %T %r"]).stdout
                raise LostError(f"{folder.name}: did not end in time: {sorted(missing)}\n{queue}")
            time.sleep(0.1)

    def wait_empty(self, name):
        wait_for(lambda: not self.cluster.run(["squeue", "-h"]).stdout.strip(), f"the queue of {name} to be empty", 60)

    def read(self, folder, name, submitted):
        code, ended, node = (folder / f"{name}.end").read_text().split()
        if code != "0":
            raise LostError(f"{folder.name}: {name} failed: {(folder / f'{name}.err').read_text()[-2000:]}")
        report = json.loads((folder / f"{name}.out").read_text().splitlines()[-1])
        # The second line has the user and system time of the shell's children, as 0m1.234s.
        parts = [part.rstrip("s").split("m") for part in (folder / f"{name}.cpu").read_text().splitlines()[1].split()]
        cpu_s = sum(int(m) * 60 + float(s) for m, s in parts)
        started = float((folder / f"{name}.start").read_text())
        return Ended(name, submitted, float(ended), node, report, cpu_s, started)

    def check_accounting(self, name, numbers):
        """Check that sacct shows every job as completed."""
        argv = ["sacct", "-X", "-n", "-P", "-o", "JobID,State", "-j", ",".join(numbers)]
        states = {}

        def are_all_ended():
            lines = self.cluster.run(argv).stdout.split()
            states.update(line.split("|") for line in lines)
            return len(states) == len(numbers) and not {"RUNNING", "PENDING"} & set(states.values())

        wait_for(are_all_ended, lambda: f"the accounting of {name}: {states}", 30)
        wrong = {number: state for number, state in states.items() if state != "COMPLETED"}
        if wrong:
            raise LostError(f"{name}: not completed: {wrong}")

    def salus(self, *arguments, node=None):
        extra = {"PYTHONPATH": str(ROOT), "SLURMD_NODENAME": node or self.cluster.plan.nodes[0]}
        done = self.cluster.run([sys.executable, "-m", "cli.main", *arguments], None, 60.0, **extra)
        if done.returncode != 0:
            raise LostError(f"salus {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def node_status(self, node):
        """The status that the salusd of a node shows to root."""
        return Lab(self.cluster).node_status(node)

    def set_policy(self, policy):
        for node in self.cluster.plan.nodes:
            self.salus("policy", "set", policy, node=node)

    def profiles(self, names):
        """The profiles by the name in --salus-profile; waits until all are written."""

        def known():
            found = json.loads(self.salus("profiles", "list", "--json"))
            by_name = {row["key"]["signature"].removeprefix("name:"): row for row in found}
            return {name: by_name[name] for name in names} if set(names) <= by_name.keys() else None

        return wait_for(known, "the profiles to be written", 60)


def simulate(path, *options):
    """Run `salus simulate` on a table of jobs; returns the results by policy."""
    argv = [sys.executable, "-m", "cli.main", "simulate", "--workload", str(path), "--json", *options]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=ROOT,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    return {row["name"]: row for row in json.loads(done.stdout)["policies"]}


def quantile(values, share):
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def figures(ended, solo_s, device_count):
    """The results of one configuration. `solo_s` is the time of each job alone, from submit to end."""
    completions = [job.completion_s for job in ended.values()]
    slowdowns = [job.completion_s / solo_s[name] for name, job in ended.items()]
    first, last = min(job.submitted for job in ended.values()), max(job.ended for job in ended.values())
    busy_s = sum(job.report["cpu_s"] for job in ended.values())
    return {
        "average_s": round(statistics.mean(completions), 3),
        "median_s": round(statistics.median(completions), 3),
        "p95_s": round(quantile(completions, 0.95), 3),
        "makespan_s": round(last - first, 3),
        "queueing_s": round(statistics.mean(job.report["first"] - job.submitted for job in ended.values()), 3),
        "busy_share": round(busy_s / ((last - first) * device_count), 4),
        "slowdown": round(statistics.mean(slowdowns), 3),
        "jain": round(jain([1 / value for value in slowdowns]), 4),
        "completion_s": [round(value, 3) for value in completions],
    }


def slurm_time(seconds):
    """Whole seconds in the format of --salus-time."""
    whole = max(1, math.ceil(seconds))
    return f"{whole // 3600:02d}:{whole % 3600 // 60:02d}:{whole % 60:02d}"
