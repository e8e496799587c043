"""A real salusd for tests, with its own directory and sockets. A test can ask, kill and restart it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tests.support import device_kind

ROOT = Path(__file__).resolve().parents[2]
#: Deadline for one step of a test, on a busy machine.
DEADLINE_S = 60.0


class Salusd:
    """Use as a context manager. `memory` sizes the device; `config` adds lines to salus.conf."""

    def __init__(
        self,
        *,
        memory: str = "256M",
        cores: str = "",
        config: str = "",
        devices: str = "",
        node: str = "n1",
        digest_every: int = 50,
        environment: dict[str, str] | None = None,
    ) -> None:
        # Socket paths must be short: at most 108 bytes with the terminating zero.
        self.directory = Path(tempfile.mkdtemp(prefix="salus-test-"))
        self.directory.chmod(0o755)
        self.node = node
        self.socket = self.directory / "run" / "salusd.sock"
        self.control = self.directory / "run" / "control.sock"
        self.state = self.directory / "state"
        self.database = self.directory / "salus.db"
        self.config = self.directory / "salus.conf"
        self.log = self.directory / "log"
        device = f"DeviceName=host0 Type=host Memory={memory}" + (f" Cores={cores}" if cores else "")
        #: Environment in which the daemon and its workers find an emulated GPU; empty on a host device.
        self.gpu: dict[str, str] = {}
        self.environment = {"PYTHONPATH": str(ROOT), **(environment or {})}
        if device_kind.IS_CUDA and not devices:
            self.gpu, device = device_kind.make_gpu(self.directory, memory)
        self.write_config(config, devices or device)
        self.process: subprocess.Popen[bytes] | None = None
        self.digest_every = digest_every

    def write_config(self, config: str, devices: str) -> None:
        lines = [
            "ClusterName=test",
            "SingleHost=yes",
            *(["LocalJobs=yes"] if "LocalJobs" not in config else []),
            f"DaemonSocket={self.socket}",
            f"ControlSocket={self.control}",
            f"StateDir={self.state}",
            *([f"StorageUrl=sqlite:///{self.database}"] if "StorageUrl" not in config else []),
            *(["MetricsPort=0"] if "MetricsPort" not in config else []),
            *(["AutoDetect=off"] if "AutoDetect" not in config + devices else []),
            *(["LedgerInterval=200ms"] if "LedgerInterval" not in config else []),
            *(["SampleInterval=200ms"] if "SampleInterval" not in config else []),
            config,
            devices,
        ]
        self.config.write_text("\n".join(lines) + "\n")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "nodedaemon", "-f", str(self.config), "-N", self.node]
        command += ["--digest-every", str(self.digest_every), *arguments]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(*command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, **self.environment, **self.gpu},
            )
        wait_until(lambda: self.is_up() or self.process.poll() is not None, "salusd comes up", self.log_tail)
        if self.process.poll() is not None:
            raise AssertionError(f"salusd ended with {self.process.returncode}:\n{self.log_tail()}")

    def command(self, *argv: str) -> list[str]:
        """The command line that starts the daemon."""
        return list(argv)

    def is_up(self) -> bool:
        try:
            return bool(self.ask("ping")["pid"] == self.process.pid)
        except (OSError, ValueError):
            return False

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int | None:
        if self.process is None or self.process.poll() is not None:
            return None if self.process is None else self.process.returncode
        self.process.terminate()
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def stop_written(self) -> None:
        """Stop once the database has all records. Without this, some may stay in the spool until the next start."""
        self.wait_for(lambda status: status["daemon"]["spool_records"] == 0, "all records are in the database")
        self.stop()

    def ask(self, verb: str, timeout_s: float = DEADLINE_S, **fields: Any) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(self.control))
            connection.sendall(json.dumps({"verb": verb, **fields}).encode() + b"\n")
            with connection.makefile("r") as answers:
                return json.loads(answers.readline())

    def hook(self, verb: str, **fields: Any) -> dict[str, Any]:
        """A request as Slurm's hooks send it."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(DEADLINE_S)
            connection.connect(str(self.socket))
            connection.send(json.dumps({"verb": verb, **fields}).encode())
            return json.loads(connection.recv(1 << 16))

    def status(self) -> dict[str, Any]:
        return self.ask("status")

    def sessions(self) -> dict[str, dict[str, Any]]:
        """Live sessions by job."""
        return {session["job"]: session for session in self.status()["sessions"] if session["state"] != "leaving"}

    def wait_for(self, what: Callable[[dict[str, Any]], Any], name: str) -> Any:
        """Wait until `what` of the status is true, and return its value."""
        return wait_until(lambda: what(self.status()), name, self.log_tail)

    def log_tail(self) -> str:
        return self.log.read_text()[-6000:] if self.log.exists() else ""


def wait_until(
    what: Callable[[], Any], name: str, log_tail: Callable[[], str] = str, deadline_s: float = DEADLINE_S
) -> Any:
    """Poll until the answer is true and return it; fails at the deadline with `name` and the end of the log."""
    end_s = time.monotonic() + deadline_s
    while time.monotonic() < end_s:
        if answer := what():
            return answer
        time.sleep(0.01)
    raise AssertionError(f"not within {deadline_s} s: {name}\n{log_tail()}")
