"""The process that owns a private cluster: starts it in order, restarts parts on request, and ends all of it.

Run as `python -m slurm_plugin.cluster.supervisor DIR`. It writes one JSON object per line to standard output until the
cluster is up (`{"ready": true}`) or has failed (`{"error": ...}`). Then it serves requests (nodedaemon.wire.envelope)
on `run/supervisor.sock`. It ends the cluster on request, on SIGTERM, or when its owner (`--owner`) has ended.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from nodedaemon.core.errors import OperatingError, RequestError, SalusError
from nodedaemon.wire.envelope import (
    REQUEST_BYTES_MAX,
    Failure,
    NotFoundError,
    Request,
    exchange,
    read_request,
    write_answer,
)
from nodedaemon.wire.trust import OWN_IMPORTS, own_module
from slurm_plugin.cluster import files
from slurm_plugin.cluster.plan import ClusterPlan, Ports
from slurm_plugin.cluster.ports import hold_port
from slurm_plugin.cluster.processes import (
    Child,
    adopt_orphans,
    kill_descendants,
    reap_orphans,
    start_time,
    wait_until,
)
from slurm_plugin.slurm import read_release

COMMAND_TIMEOUT_S = 30
START_TIMEOUT_S = 60
SCHEMA_PROGRAM = """
import sys
from accounting.storage.database import open_database
from accounting.storage.schema import upgrade
upgrade(open_database(sys.argv[1]))
"""
ACCOUNTING_SQL = (
    "CREATE DATABASE slurm_acct_db; CREATE USER slurm@localhost IDENTIFIED VIA unix_socket; "
    "GRANT ALL ON slurm_acct_db.* TO slurm@localhost;"
)


def run(argv: list[str], environment: dict[str, str]) -> str:
    """The output of a command; OperatingError if it fails."""
    result = subprocess.run(
        argv, env={**os.environ, **environment}, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
    )
    if result.returncode != 0:
        message = (result.stderr or result.stdout).strip()[-400:]
        raise OperatingError(f"cluster: {argv[0]}: exit status {result.returncode}: {message}")
    return result.stdout


def succeeds(argv: list[str], environment: dict[str, str]) -> bool:
    with contextlib.suppress(OperatingError, subprocess.TimeoutExpired):
        run(argv, environment)
        return True
    return False


def accepts(path: Path) -> bool:
    """Whether a process listens on this unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def knows_nodes(path: Path) -> bool:
    """Whether salus-admitd has read Slurm's nodes; until then it decides by salus.conf alone."""
    with socket.socket(socket.AF_UNIX) as peer, contextlib.suppress(OSError, SalusError):
        peer.settimeout(2.0)
        peer.connect(str(path))
        return exchange(peer, "salus-admitd", {"verb": "ping"}).get("is_catalog_ready") is True
    return False


class Supervisor:
    def __init__(self, plan: ClusterPlan, started: float) -> None:
        self.started = started
        self.holders = [hold_port() for _ in range(3 + plan.node_count)]
        controller, database, admission, *nodes = [holder.getsockname()[1] for holder in self.holders]
        self.plan = dataclasses.replace(plan, ports=Ports(controller, database, admission, tuple(nodes)))
        self.children = {child.name: child for child in self.planned_children()}

    def planned_children(self) -> list[Child]:
        """All processes of the cluster, in the order in which they start."""
        plan, environment = self.plan, self.plan.environment()

        def child(name: str, *argv: str, **extra: str) -> Child:
            return Child(name, argv, {**environment, **extra}, plan.path("log", f"{name}.out"))

        def slurm_child(name: str, *argv: str, **extra: str) -> Child:
            return child(name, *plan.slurm_command(*argv), **extra)

        munge = plan.path("munge")
        children = [
            slurm_child("munged", "munged", "--foreground", "--force", f"--key-file={munge / 'munge.key'}",
                  f"--socket={plan.munge_socket}", f"--pid-file={munge / 'munged.pid'}",
                  f"--log-file={munge / 'munged.log'}", f"--seed-file={munge / 'munged.seed'}"),
            slurm_child("mariadb", "mariadbd", f"--defaults-file={plan.path('etc', 'my.cnf')}"),
            slurm_child("slurmdbd", "slurmdbd", "-D", MYSQL_UNIX_PORT=str(plan.path("mysql", "mysql.sock"))),
            slurm_child("slurmctld", "slurmctld", "-D", "-f", str(plan.slurm_conf)),
        ]  # fmt: skip
        if plan.with_salus:
            children.append(child("admitd", *own_module("slurm_plugin.admitd.server"), **OWN_IMPORTS))
            if plan.with_daemons:
                children += [
                    child(f"salusd.{node}", *own_module("nodedaemon", "--node", node), **OWN_IMPORTS)
                    for node in plan.nodes
                ]
        children += [
            slurm_child(f"slurmd.{node}", "slurmd", "-D", "-f", str(plan.slurm_conf), "-N", node,
                  SALUS_SOCKET=str(plan.node_socket(node)))
            for node in plan.nodes
        ]  # fmt: skip
        return children

    def say(self, step: str) -> None:
        print(json.dumps({"step": step, "seconds": round(time.monotonic() - self.started, 2)}), flush=True)

    def boot(self) -> None:
        plan = self.plan
        self.mount_directory()
        files.write_files(plan, read_release(run([*plan.slurm_command("slurmctld", "-V")], {})))
        plan.save()
        key = plan.path("munge", "munge.key")
        key.touch(mode=0o400)
        key.write_bytes(os.urandom(1024))
        self.say("files")
        # Creating an empty database takes about two seconds, so it runs in parallel.
        maker = subprocess.Popen(
            plan.slurm_command("mariadb-install-db", f"--defaults-file={plan.path('etc', 'my.cnf')}", "--skip-test-db",
                               "--auth-root-authentication-method=socket"),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        schema = self.start_schema()
        if plan.with_salus and plan.root is None:
            files.write_commands(plan)
        self.start("munged")
        _, text = maker.communicate(timeout=START_TIMEOUT_S)
        if maker.returncode != 0:
            raise OperatingError(f"cluster: mariadb-install-db: exit status {maker.returncode}: {text.strip()[-400:]}")
        self.start("mariadb")
        run([*plan.slurm_command("mariadb", "-S", str(plan.path("mysql", "mysql.sock")), "-e", ACCOUNTING_SQL)], {})
        self.start("slurmdbd")
        if schema is not None and schema.wait(START_TIMEOUT_S) != 0:
            raise OperatingError(
                f"cluster: schema of {plan.path('db')}: not created; see {plan.path('log', 'schema.out')}"
            )
        ours = [name for name in self.children if name.startswith(("admitd", "salusd."))]
        slurmds = [f"slurmd.{node}" for node in plan.nodes]
        for name in ours:
            self.children[name].start()
        self.start("slurmctld")
        for name in slurmds:
            self.children[name].start()
        for name in (*ours, *slurmds):
            self.wait_ready(name)
        for node in plan.nodes:
            slurmd = self.children[f"slurmd.{node}"]
            wait_until(lambda node=node: node in self.idle_nodes(), f"{node} to be idle", START_TIMEOUT_S, slurmd)  # type: ignore[misc]
        if plan.with_salus:
            admitd = self.children["admitd"]
            wait_until(lambda: knows_nodes(plan.admission_socket), "salus-admitd's catalog", START_TIMEOUT_S, admitd)
        self.say(f"{plan.node_count} nodes idle")

    def mount_directory(self) -> None:
        """Mount our tree for users, and the cluster's directory and /proc in another root. The mounts end with us."""
        root, directory = self.plan.root, self.plan.directory
        if self.plan.is_tree_shown:
            for source, target in self.plan.shown_trees():
                target.mkdir()
                run(["mount", "--bind", str(source), str(target)], {})
        if root is None:
            return
        inside = root / directory.relative_to("/")
        inside.mkdir(parents=True, exist_ok=True)
        run(["mount", "--bind", str(directory), str(inside)], {})
        run(["mount", "-t", "proc", "proc", str(root / "proc")], {})

    def start_schema(self) -> subprocess.Popen[bytes] | None:
        """Create the tables of Salus's database in the background."""
        if not self.plan.with_salus:
            return None
        with self.plan.path("log", "schema.out").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-sP", "-c", SCHEMA_PROGRAM, f"sqlite:///{self.plan.path('db', 'salus.db')}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def idle_nodes(self) -> set[str]:
        # A set, because sinfo lists a node once per partition.
        output = run([*self.plan.slurm_command("sinfo", "-h", "-N", "-t", "idle", "-o", "%N")], self.plan.environment())
        return set(output.split())

    def start(self, name: str) -> None:
        """Start a part, wait until it is ready, and report it."""
        if self.children[name].pid is None:
            self.children[name].start()
        self.wait_ready(name)
        self.say(name)

    def wait_ready(self, name: str) -> None:
        plan, child, environment = self.plan, self.children[name], self.plan.environment()
        kind, _, node = name.partition(".")
        asked = ("sacctmgr", "-n", "show", "cluster") if kind == "slurmdbd" else ("scontrol", "ping")
        argv = list(plan.slurm_command(*asked))
        sockets = {
            "munged": plan.munge_socket,
            "mariadb": plan.path("mysql", "mysql.sock"),
            "admitd": plan.admission_socket,
            "salusd": plan.path("run", node, "control.sock"),
        }
        if kind in sockets:
            wait_until(lambda: accepts(sockets[kind]), name, START_TIMEOUT_S, child)
        else:
            wait_until(lambda: succeeds(argv, environment), name, START_TIMEOUT_S, child)

    def write_state(self) -> None:
        pids = {name: child.pid for name, child in self.children.items() if child.pid is not None}
        state = {
            "supervisor": [os.getpid(), start_time(os.getpid())],
            "children": {name: [pid, start_time(pid)] for name, pid in pids.items()},
        }
        path = self.plan.path("state.json")
        path.with_suffix(".new").write_text(json.dumps(state, indent=1) + "\n")
        path.with_suffix(".new").rename(path)

    def answer(self, request: Request) -> dict[str, object]:
        name = str(request.fields.get("name", ""))
        if request.verb == "status":
            return {"children": {name: child.pid for name, child in self.children.items()}}
        if name not in self.children:
            raise NotFoundError(f"cluster: {request.verb} {name}: no such part; use one of {' '.join(self.children)}")
        if request.verb == "stop":
            self.children[name].end(int(request.fields.get("signal", signal.SIGTERM)))
        elif request.verb == "start":
            self.start(name)
        else:
            raise RequestError(f"cluster: {request.verb}: no such verb; use status, start or stop")
        self.write_state()
        return {"pid": self.children[name].pid}

    def serve(self, owner: int | None) -> None:
        path = self.plan.path("run", "supervisor.sock")
        with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
            listener.bind(str(path))
            path.chmod(0o600)
            listener.listen()
            # Report this last, because the caller may send a request at once. It stops reading after this line, so
            # standard output goes to /dev/null: a later print must not end us.
            print(json.dumps({"ready": True}), flush=True)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            selector.register(listener, selectors.EVENT_READ)
            if owner is not None:
                selector.register(os.pidfd_open(owner), selectors.EVENT_READ)
            while True:
                for key, _ in selector.select(timeout=1.0):
                    if key.fileobj is not listener:
                        return
                    self.serve_one(listener)
                # Reap only orphans of ended jobs: the status of our own children is read through their Popen.
                if all(child.pid is not None for child in self.children.values()):
                    reap_orphans()

    def serve_one(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(5.0)
            try:
                request = read_request(connection.makefile("rb").readline(REQUEST_BYTES_MAX))
                answer: dict[str, object] | Failure = {"ok": True, **self.answer(request)}
            except SalusError as error:
                answer = Failure.of(error)
            except OSError as error:
                answer = Failure(why=str(error))
            with contextlib.suppress(OSError):
                connection.sendall(write_answer(answer))

    def end(self) -> None:
        """End all parts in reverse order, then any process that they left behind."""
        order = list(reversed(self.children.values()))
        for child in order:
            if child.name.startswith(("slurmd.", "salusd", "admitd")) and child.popen is not None:
                with contextlib.suppress(ProcessLookupError):
                    child.popen.terminate()
        for child in order:
            # slurmctld would take two seconds to save a state that nobody reads again.
            child.end(signal.SIGKILL if child.name == "slurmctld" else signal.SIGTERM, patience_s=3.0)
        kill_descendants(os.getpid())


def main() -> int:
    parser = argparse.ArgumentParser(prog="supervisor")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--owner", type=int)
    arguments = parser.parse_args()
    # SIGTERM ends us as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    adopt_orphans()
    try:
        supervisor = Supervisor(ClusterPlan.load(arguments.directory), time.monotonic())
    except SalusError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    try:
        # From here on `salus cluster down` finds us, even while the cluster starts.
        supervisor.write_state()
        supervisor.boot()
        supervisor.write_state()
        supervisor.serve(arguments.owner)
    except KeyboardInterrupt:
        return 0
    except (SalusError, OSError, subprocess.SubprocessError) as error:
        with contextlib.suppress(OSError):
            print(json.dumps({"error": str(error)}), flush=True)
        return 1
    finally:
        # A second signal must not interrupt the clean-up.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        supervisor.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
