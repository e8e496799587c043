"""A real salus-admitd for tests, with its own directory, port and munged. A test can ask and stop it.

Slurm is a directory of scripts: one node and an empty queue.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

from nodedaemon.wire.envelope import write_request
from slurm_plugin.admitd.credentials import digest
from slurm_plugin.cluster.ports import hold_port
from tests.support.salusd import DEADLINE_S, ROOT, wait_until

SLURM_USER = "slurm"
SCRIPTS = {
    "scontrol": "echo slurm 22.05.8",
    "squeue": """echo '{"jobs": []}'""",
    "sinfo": "printf '%-128s%-128s%-1024s\\n' node1 'main*' gpu:2,shard:96,salus:64",
    "sacct": "true",
    "sacctmgr": "true",
}


class Admitd:
    """Use as a context manager. `config` adds lines to salus.conf. As in a private cluster, it runs as root."""

    def __init__(self, config: str = "") -> None:
        # Socket paths must be short: at most 108 bytes with the terminating zero.
        self.directory = Path(tempfile.mkdtemp(prefix="salus-test-"))
        self.directory.chmod(0o755)
        self.socket = self.directory / "run" / "admitd.sock"
        self.munge_socket = self.directory / "munge.sock"
        self.database = self.directory / "salus.db"
        self.config = self.directory / "salus.conf"
        self.log = self.directory / "log"
        self._port_holder = hold_port()
        self.port = self._port_holder.getsockname()[1]
        scripts = self.directory / "bin"
        scripts.mkdir()
        for name, line in SCRIPTS.items():
            (scripts / name).write_text(f"#!/bin/sh\n{line}\n")
            (scripts / name).chmod(0o755)
        lines = [
            "ClusterName=test",
            "SingleHost=yes",
            "AutoDetect=off",
            "LaneReserve=256M",
            f"SlurmUser={SLURM_USER}",
            f"SlurmBinDir={scripts}",
            f"AdmissionSocket={self.socket}",
            "AdmissionHost=127.0.0.1",
            f"AdmissionPort={self.port}",
            *(["AdmissionMetricsPort=0"] if "AdmissionMetricsPort" not in config else []),
            f"StorageUrl=sqlite:///{self.database}",
            "DeviceName=host0 Type=host Memory=1024M",
            config,
        ]
        self.config.write_text("\n".join(lines) + "\n")
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT), "SALUS_MUNGE_SOCKET": str(self.munge_socket)}
        self._munged: subprocess.Popen[bytes] | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._start_munged()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self.process, self._munged):
            if process is not None and process.poll() is None:
                process.terminate()
                try:
                    process.wait(DEADLINE_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                    raise
        self._port_holder.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _start_munged(self) -> None:
        private = self.directory / "munge"
        private.mkdir(mode=0o700)
        (private / "key").touch(mode=0o400)
        (private / "key").write_bytes(os.urandom(1024))
        with (private / "out").open("wb") as out:
            self._munged = subprocess.Popen(
                ["munged", "--foreground", "--force", f"--socket={self.munge_socket}", f"--key-file={private / 'key'}",
                 f"--pid-file={private / 'pid'}", f"--log-file={private / 'log'}", f"--seed-file={private / 'seed'}"],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin"},
            )  # fmt: skip
        wait_until(lambda: connects(self.munge_socket), "munged comes up", (private / "out").read_text)

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "slurm_plugin.admitd.server", "-f", str(self.config)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT, env=self.environment,
            )  # fmt: skip
        wait_until(lambda: self.is_up() or self.process.poll() is not None, "salus-admitd", self.log_tail)
        assert self.process.poll() is None, self.log_tail()

    def is_up(self) -> bool:
        """Whether it knows Slurm's nodes."""
        return connects(self.socket) and self.ask("ping")["is_catalog_ready"]

    def ask(self, verb: str, timeout_s: float = DEADLINE_S, **fields: Any) -> dict[str, Any]:
        """A request over the unix socket, as job_submit.lua sends it."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(self.socket))
            return converse(connection, write_request({"verb": verb, **fields}))

    def submit(self, uid: int = 5, timeout_s: float = DEADLINE_S) -> dict[str, Any]:
        job = {"tres_per_node": "gres:salus:1"}
        return self.ask("submit", timeout_s, uid=uid, batch=True, job=job, options={"SALUS_SIGNATURE": "job:ab"})

    def question(self, verb: str, uid: int = 0, timeout_s: float = DEADLINE_S, **fields: Any) -> dict[str, Any]:
        """A request over TCP with a credential of `uid`."""
        return self.send(self.sign({"verb": verb, **fields}, uid), timeout_s)

    def sign(self, request: dict[str, Any], uid: int = 0, restrict_uid: int | None = None) -> bytes:
        """The line of a request. By default only SlurmUser can decode the credential."""
        message = write_request(request).rstrip(b"\n")
        restrict_uid = pwd.getpwnam(SLURM_USER).pw_uid if restrict_uid is None else restrict_uid
        words = ["munge", "--no-input", f"--socket={self.munge_socket}", f"--restrict-uid={restrict_uid}"]
        user = {} if uid == os.geteuid() else {"user": uid, "group": uid, "extra_groups": []}
        made = subprocess.run([*words, "--string", digest(message)], capture_output=True, check=True, cwd="/", **user)
        return made.stdout.strip() + b" " + message + b"\n"

    def send(self, line: bytes, timeout_s: float = DEADLINE_S) -> dict[str, Any]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s) as connection:
            return converse(connection, line)

    def log_tail(self) -> str:
        return self.log.read_text()[-6000:] if self.log.exists() else ""


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def converse(connection: socket.socket, line: bytes) -> dict[str, Any]:
    connection.sendall(line)
    with connection.makefile("rb") as answers:
        return json.loads(answers.readline())
