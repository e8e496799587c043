"""Starts, controls and ends a private cluster; used by `salus cluster`, the demo and the tests.

It needs root: it creates device nodes with mknod, and jobs run under the ids of several existing accounts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nodedaemon.core.errors import OperatingError, RequestError
from nodedaemon.wire.envelope import exchange
from nodedaemon.wire.trust import OWN_IMPORTS, own_module, require_own_directory, require_own_place
from slurm_plugin.cluster import files
from slurm_plugin.cluster.interpreter import interpreter, is_ours_open_to_all
from slurm_plugin.cluster.plan import ADVICE, ClusterPlan
from slurm_plugin.cluster.processes import is_running

DEBIAN_PACKAGES = {
    "munged": "munge",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
    "slurmdbd": "slurmdbd slurm-wlm-mysql-plugin",
    "slurmctld": "slurmctld slurm-wlm-basic-plugins",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
}
ANSWER_WAIT_S = 90.0
#: Accounts that every Debian system has. They serve as users of the cluster, so that none must be created.


def check_host(root: Path | None = None) -> None:
    """Refuse early, and list everything that is missing. Another `root` has its own programs."""
    if os.geteuid() != 0:
        raise RequestError("cluster: start: root is needed, for device nodes and several users; run: sudo make demo")
    if root is not None:
        return
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = {package for program, package in DEBIAN_PACKAGES.items() if shutil.which(program, path=path) is None}
    if missing:
        raise RequestError(f"cluster: start: programs missing; run: apt-get install {' '.join(sorted(missing))}")


def up(plan: ClusterPlan, say: Callable[[str], None] | None = None, owner_pid: int | None = None) -> PrivateCluster:
    """Start a cluster and return when all its nodes are idle. With `owner_pid`, it ends when that process ends."""
    check_host(plan.root)
    if plan.with_salus and not files.spank_library(plan).exists():
        raise RequestError(f"cluster: start: {files.spank_library(plan)} is not built; run: make native")
    prepare_directory(plan.directory)
    plan = dataclasses.replace(plan, is_tree_shown=plan.with_salus and not plan.root and not is_ours_open_to_all())
    plan.save()
    # In a private mount namespace, the mounts end with the cluster.
    unshare = ["unshare", "--mount", "--propagation", "private"] if plan.root or plan.is_tree_shown else []
    argv = [*unshare, *own_module("slurm_plugin.cluster.supervisor", str(plan.directory))]
    if owner_pid is not None:
        argv += ["--owner", str(owner_pid)]
    environment = {**os.environ, **OWN_IMPORTS}
    environment["PATH"] = environment.get("PATH", "") + ":/usr/sbin:/sbin"
    for name in ("SLURM_CONF", "SALUS_CONF", "SALUS_SOCKET"):
        environment.pop(name, None)
    with (plan.directory / "supervisor.log").open("ab") as log:
        supervisor = subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            cwd="/", text=True,
        )  # fmt: skip
    try:
        _wait_ready(supervisor, plan, say)
    except OperatingError:
        # The supervisor has reported the reason and ends by itself.
        supervisor.wait()
        raise
    except BaseException:
        # Also on Ctrl-C: otherwise the cluster would keep running unnoticed.
        supervisor.terminate()
        supervisor.wait()
        raise
    # Do not wait for the supervisor: it outlives this process, or ends with its owner.
    supervisor.returncode = 0
    return PrivateCluster(ClusterPlan.load(plan.directory))


def _wait_ready(supervisor: subprocess.Popen[str], plan: ClusterPlan, say: Callable[[str], None] | None) -> None:
    """Wait until the supervisor reports that the cluster is up; OperatingError if it fails."""
    assert supervisor.stdout is not None
    with supervisor.stdout:
        for line in supervisor.stdout:
            report = json.loads(line)
            if "step" in report and say:
                say(f"{report['seconds']:6.2f} s  {report['step']}")
            elif "error" in report:
                raise OperatingError(f"{report['error']}; logs are in {plan.directory}")
            elif report.get("ready"):
                return
    raise OperatingError(f"cluster: start: the supervisor ended early; see {plan.directory}/supervisor.log")


def prepare_directory(directory: Path) -> None:
    """Create the cluster's directory, or clear that of an ended cluster. Other files are never touched."""
    if os.path.lexists(directory):
        require_own_directory(directory, ADVICE)
        require_own_place(directory, ADVICE)
        if any(directory.iterdir()):
            if not (directory / "plan.json").exists():
                raise RequestError(f"cluster: {directory}: has files that are not ours; choose another with --dir")
            if PrivateCluster(ClusterPlan.load(directory)).is_up():
                raise RequestError(f"cluster: {directory}: a cluster is running here; end it with salus cluster down")
        shutil.rmtree(directory)
    for parent in directory.parents:
        if parent.exists() and not parent.stat().st_mode & stat.S_IXOTH:
            raise RequestError(
                f"cluster: {directory}: other users cannot enter {parent}, but SlurmUser and the users of jobs must; "
                "set TMPDIR=/tmp, or choose another with --dir"
            )
    require_own_place(directory, ADVICE)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir()
    except FileExistsError:
        raise RequestError(f"cluster: {directory}: another user just created it; choose another with --dir") from None
    directory.chmod(0o755)


@dataclasses.dataclass(frozen=True)
class PrivateCluster:
    """A cluster that was started in a directory. It owns no process and can be recreated from the directory."""

    plan: ClusterPlan

    def state(self) -> dict[str, Any]:
        with contextlib.suppress(FileNotFoundError, ValueError):
            state: dict[str, Any] = json.loads(self.plan.path("state.json").read_text())
            return state
        return {}

    def is_up(self) -> bool:
        return is_running(*self.state().get("supervisor", (0, None)))

    def ask(self, verb: str, **fields: object) -> dict[str, Any]:
        """Send a request to the supervisor and return its answer; a failure is raised."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_WAIT_S)
            try:
                connection.connect(str(self.plan.path("run", "supervisor.sock")))
            except OSError as error:
                raise OperatingError(f"cluster: {self.plan.directory}: supervisor does not answer: {error}") from error
            return exchange(connection, f"cluster: {self.plan.directory}: supervisor", {"verb": verb, **fields})

    def start(self, name: str) -> None:
        """Start a part that was stopped, and wait until it is ready."""
        self.ask("start", name=name)

    def stop(self, name: str, with_signal: int = signal.SIGTERM) -> None:
        self.ask("stop", name=name, signal=with_signal)

    def pid(self, name: str) -> int | None:
        pid: int | None = self.ask("status")["children"].get(name)
        return pid

    def run(
        self, argv: Sequence[str], user: str | None = None, timeout_s: float = 60.0, **extra: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the cluster's environment, as root or under the id of an existing account."""
        with self.popen(argv, user, **extra) as process:
            try:
                output, errors = process.communicate(timeout=timeout_s)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(list(argv), process.returncode, output, errors)

    def popen(self, argv: Sequence[str], user: str | None = None, **extra: str) -> subprocess.Popen[str]:
        """Like `run`, but does not wait for the command to end."""
        entry = pwd.getpwnam(user) if user else None
        # A fresh environment: Slurm would copy the caller's into the job.
        environment = {
            "PATH": self.plan.search_path(),
            "LANG": "C.UTF-8",
            "HOME": "/",
            "USER": entry.pw_name if entry else "root",
            **self.plan.environment(),
            **extra,
        }
        return subprocess.Popen(
            self.command(argv, entry), env=environment, cwd=self.plan.path("work"), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def command(self, argv: Sequence[str], entry: pwd.struct_passwd | None) -> list[str]:
        """`argv` as a user of the cluster runs it: in the supervisor's mounts or other root, with the account's ids.

        Only root may enter the mount namespace, so the ids change afterwards.
        """
        ids = ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"] if entry else []
        if ids:
            # setpriv keeps root's capabilities until its exec, so it would find programs that the user cannot run.
            ids += ["--", "/usr/bin/env"]
        if self.plan.root is None and not self.plan.is_tree_shown:
            return [*ids, *argv]
        enter = ["nsenter", "-t", str(self.state()["supervisor"][0]), "-m", "-r"]
        if self.plan.root is None:
            return [*enter, "--wd=.", *ids, *argv]
        ids = [f"--userspec={entry.pw_uid}:{entry.pw_gid}", "--groups="] if entry else []
        inside = ["/bin/sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", str(self.plan.path("work")), *argv]
        return [*enter, "--", "chroot", *ids, str(self.plan.root), *inside]

    @property
    def python(self) -> str:
        """A Python with our packages that every user of the cluster may run."""
        return interpreter(self.plan)

    def status(self) -> dict[str, Any]:
        """The parts with their process ids and the nodes with their states."""
        if not self.is_up():
            return {"directory": str(self.plan.directory), "up": False, "parts": {}, "nodes": {}}
        parts = self.ask("status")["children"]
        nodes = self.run(["sinfo", "-h", "-N", "-o", "%N %T"]).stdout.split()
        return {
            "directory": str(self.plan.directory),
            "up": all(parts.values()),
            "parts": parts,
            "nodes": dict(zip(nodes[::2], nodes[1::2], strict=False)),
            "environment": self.plan.environment(),
        }

    def down(self, *, keep: bool = False) -> None:
        """End every process, even without a supervisor, and remove the directory unless `keep`."""
        state = self.state()
        pid, started = state.get("supervisor", (0, None))
        if is_running(pid, started):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + 60
            while is_running(pid, started) and time.monotonic() < deadline:
                time.sleep(0.02)
        for name, (child, child_started) in state.get("children", {}).items():
            if is_running(child, child_started):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
                print(f"cluster: {name} ({child}) had to be killed", file=sys.stderr)
        if not keep:
            shutil.rmtree(self.plan.directory, ignore_errors=True)
