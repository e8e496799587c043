"""A private Slurm cluster for tests: submit a job, wait for its state, read its charge, store a profile."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
from functools import cached_property
from pathlib import Path

from accounting.profiles import ProfileKey, set_profile
from accounting.storage.database import open_database
from accounting.viewer import OPERATOR
from nodedaemon.drivers.process import read_stat
from nodedaemon.wire.segment import parse_segment
from slurm_plugin.cluster.control import PrivateCluster
from slurm_plugin.slurm import GPU_APART_RELEASE, read_release
from slurm_plugin.slurm.tres import parse_tres


def wait_for(ready, what, seconds=30.0):
    """Poll until `ready()` is true and return its value."""
    deadline = time.monotonic() + seconds
    while not (value := ready()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what() if callable(what) else what}"
        time.sleep(0.05)
    return value


class Lab:
    #: The daemons that a test restarts.
    PARTS = ("slurmctld", "slurmd.node1", "slurmd.node2", "salusd.node1", "salusd.node2", "admitd")

    def __init__(self, cluster: PrivateCluster) -> None:
        self.cluster = cluster
        self.work = cluster.plan.path("work")

    @cached_property
    def release(self) -> tuple[int, int]:
        return read_release(self.ask("scontrol", "--version"))

    @property
    def whole_device(self) -> dict[str, int]:
        """The charge of an unknown job."""
        if self.release >= GPU_APART_RELEASE:
            return {"salus": 1, "gpu": 1}
        return {"salus": 1, "shard": self.cluster.plan.device_shards}

    def run(self, *argv, user=None, **options) -> subprocess.CompletedProcess:
        return self.cluster.run([str(part) for part in argv], user=user, **options)

    def ask(self, *argv, user=None, **environment) -> str:
        """The output of a command that must succeed."""
        done = self.run(*argv, user=user, **environment)
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout

    @contextlib.contextmanager
    def background(self, *argv, user=None):
        """A command that runs beside the test and is ended with it."""
        with self.cluster.popen([str(part) for part in argv], user=user) as process:
            try:
                yield process
            finally:
                process.kill()

    def kill_slurmstepd(self, job) -> None:
        """Kill every slurmstepd of a job: the parents of its steps' processes."""

        def parents():
            found = set()
            for node in self.cluster.plan.nodes:
                for line in self.run("scontrol", "listpids", job, node).stdout.splitlines()[1:]:
                    stat = read_stat(int(line.split()[0]))
                    if stat is not None:
                        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                            if "slurmstepd" in Path(f"/proc/{stat.parent_pid}/comm").read_text():
                                found.add(stat.parent_pid)
            return found

        for pid in wait_for(parents, f"a slurmstepd of job {job}"):
            os.kill(pid, signal.SIGKILL)

    def daemon_log(self, node, line_count=40) -> str:
        """The last lines that the salusd of a node has logged."""
        lines = self.cluster.plan.path("log", f"salusd.{node}.out").read_text().splitlines()
        return "\n".join(lines[-line_count:])

    def script(self, name, *lines) -> str:
        path = self.work / name
        path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        path.chmod(0o755)
        return str(path)

    def sbatch(self, *argv, user="games", output="/dev/null", **environment) -> str:
        """Submit and return the job's id. The job gets `environment`, as it gets a user's own."""
        text = self.ask("sbatch", "--parsable", "-o", output, *argv, user=user, **environment)
        return text.strip().splitlines()[-1].partition(";")[0]

    def refusal(self, *argv, user="games", command="sbatch") -> str:
        """The message that the user reads when a submission is refused."""
        done = self.run(command, *argv, user=user)
        assert done.returncode != 0, f"{argv}: was accepted: {done.stdout}"
        return done.stderr

    def field(self, job, name) -> str:
        text = self.ask("scontrol", "-o", "show", "job", job).splitlines()[0]
        found = re.search(rf"(?:^| ){name}=(\S*)", text)
        return found[1] if found else ""

    def state(self, job) -> str:
        done = self.run("scontrol", "-o", "show", "job", job)
        found = re.search(r" JobState=(\S+)", done.stdout)
        return found[1] if found else ""

    def wait_state(self, job, *states, seconds=30.0) -> str:
        wait_for(lambda: self.state(job) in states, lambda: f"job {job} in {states}, is {self.state(job)}", seconds)
        return self.state(job)

    def charge(self, job) -> dict[str, int]:
        return {tres.name: tres.count for tres in parse_tres(self.field(job, "TresPerNode"))}

    def segment(self, job):
        return parse_segment(self.field(job, "AdminComment"))

    def device(self, job) -> tuple[str, str]:
        """Node and device index on which a running job was placed."""
        text = self.ask("scontrol", "-d", "-o", "show", "job", job).splitlines()[0]
        node = re.search(r" Nodes=(\S+)", text)
        index = re.search(r"(?:shard|gpu):\d+\(IDX:(\d+)\)", text)
        if index is None:
            uses = re.search(r"shard:\d+\(([^)]*)\)", text)
            counts = [piece.split("/")[0] for piece in uses[1].split(",")] if uses else []
            return node[1], next(str(i) for i, count in enumerate(counts) if count != "0")
        return node[1], index[1]

    def node_status(self, node) -> dict:
        """The status that the salusd of a node shows to root."""
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(10)
            peer.connect(str(self.cluster.plan.path("run", node, "control.sock")))
            peer.sendall(b'{"verb": "status"}\n')
            return json.loads(peer.makefile().readline())

    def sessions(self, job=None) -> list[dict]:
        """The sessions on all nodes, of one job or of all."""
        found = []
        for node in self.cluster.plan.nodes:
            found += [{**row, "node": node} for row in self.node_status(node)["sessions"]]
        return [row for row in found if job is None or row["job"] == job]

    def cancel_all(self) -> None:
        """End all jobs except those in partition `requeue`, which a module keeps over several tests."""
        self.run("scancel", "--partition=main")
        wait_for(lambda: not self.ask("squeue", "-h", "-p", "main").strip(), lambda: self.ask("squeue"), 60)

    def store_profile(self, signature, persistent_bytes, ephemeral_bytes, user="games") -> None:
        """Write a profile to the database, as if a run had been measured."""
        database = open_database(f"sqlite:///{self.cluster.plan.path('db', 'salus.db')}")
        key = ProfileKey(cluster=self.cluster.plan.name, user=user, signature=signature, device_model="host")
        set_profile(
            database, OPERATOR, key, persistent_bytes=persistent_bytes, ephemeral_bytes=ephemeral_bytes,
            now_utc_ns=time.time_ns(),
        )  # fmt: skip
        database.close()
