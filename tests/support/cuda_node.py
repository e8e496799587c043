"""A node with emulated GPUs: a real salusd on the cuda driver, and jobs that run examples/cuda_loop.py."""

from __future__ import annotations

import fcntl
import json
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

from tests.support import emulator as emulators
from tests.support.emulator import MIB, ROOT, Emulator

LIBSALUS = ROOT / "nodedaemon/job/libsalus"
LOOP = ROOT / "examples/cuda_loop.py"
DEADLINE_S = 60.0
ARM = "import ctypes, runpy; ctypes.CDLL(None).salus_point_arm({}, {}); runpy.run_path({!r}, run_name='__main__')"


def build_libsalus() -> None:
    emulators.BUILD.mkdir(exist_ok=True)
    with (emulators.BUILD / ".libsalus.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(["make", "-s", "-C", str(LIBSALUS), f"PYTHON={sys.executable}", "all", "tests"], check=True)


def wait_until(claim: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    end_s = time.monotonic() + deadline_s
    while not (value := claim()):
        if time.monotonic() > end_s:
            raise AssertionError(f"not within {deadline_s:g} s: {what}")
        time.sleep(0.01)
    return value


class CudaNode:
    """Use as a context manager; everything that it started is ended with it."""

    def __init__(self, devices: str = "tiny-1g", config: str = "", variant: str = "emulator") -> None:
        build_libsalus()
        # Short, because socket paths are.
        self.directory = Path(tempfile.mkdtemp(prefix="salus-cuda-"))
        self.emulator: Emulator = emulators.make(self.directory, devices, variant)
        self.control = self.directory / "control.sock"
        self.processes: list[subprocess.Popen[str]] = []
        self.daemon: subprocess.Popen[str] | None = None
        lines = [
            "ClusterName=test",
            "SingleHost=yes",
            "LocalJobs=yes",
            f"DaemonSocket={self.directory / 'salusd.sock'}",
            f"ControlSocket={self.control}",
            f"StateDir={self.directory / 'state'}",
            f"StorageUrl=sqlite:///{self.directory / 'salus.db'}",
            "MetricsPort=0",
            "AutoDetect=nvml",
            "SampleInterval=200ms",
            config,
        ]
        (self.directory / "salus.conf").write_text("\n".join(lines) + "\n")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for process in [*self.processes, *([self.daemon] if self.daemon else [])]:
            if process.poll() is None:
                process.kill()
            process.communicate()
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self) -> None:
        command = [sys.executable, "-m", "nodedaemon", "-f", str(self.directory / "salus.conf"), "-N", "n1"]
        with (self.directory / "log").open("a") as log:
            self.daemon = subprocess.Popen(
                command, env=self.emulator.environment(), cwd=ROOT, stdout=log, stderr=log, text=True
            )
        wait_until(lambda: self._is_up() or self.daemon.poll() is not None, "salusd comes up")  # type: ignore[union-attr]
        assert self.daemon.poll() is None, self.story()

    def stop(self) -> None:
        """End the daemon politely and see that no device memory is left."""
        assert self.daemon is not None
        self.daemon.terminate()
        self.daemon.wait(DEADLINE_S)

    def kill_daemon(self) -> None:
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGKILL)
        self.daemon.wait(DEADLINE_S)

    def _is_up(self) -> bool:
        try:
            return bool(self.ask("ping")["ok"])
        except (OSError, ValueError):
            return False

    def ask(self, verb: str, **fields: Any) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(DEADLINE_S)
            connection.connect(str(self.control))
            connection.sendall(json.dumps({"verb": verb, **fields}).encode() + b"\n")
            with connection.makefile() as answers:
                answer: dict[str, Any] = json.loads(answers.readline())
                return answer

    def story(self) -> str:
        return (self.directory / "log").read_text()[-4000:]

    def job(
        self,
        *arguments: str,
        persistent_mib: int = 128,
        ephemeral_mib: int = 64,
        job_class: str = "normal",
        point: tuple[int, int] | None = None,
        device: str = "",
        program: tuple[str, ...] = (str(LOOP),),
        **environment: str,
    ) -> subprocess.Popen[str]:
        """Start a loop as a job of its own; `point` kills it at the nth pass of a point in libsalus."""
        fields = {
            "name": f"job{len(self.processes)}",
            "signature": "cuda_loop",
            "class": job_class,
            "persistent_bytes": persistent_mib * MIB,
            "ephemeral_bytes": ephemeral_mib * MIB,
            "device": device,
        }
        if device:
            environment["CUDA_VISIBLE_DEVICES"] = device
        library = str(LIBSALUS / "build/cuda-points/libcuda.so.1") if point else ""
        command = ["-c", ARM.format(*point, str(LOOP))] if point else [*program]
        launcher = [sys.executable, str(ROOT / "tests/support/cuda_job.py"), str(self.control), library]
        process = subprocess.Popen(
            [*launcher, json.dumps(fields), *command, *arguments],
            env=self.emulator.environment(**environment),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def report(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        """The loop's own report, after it has ended well."""
        out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, f"exit {process.returncode}\n{out}\n{err}\n{self.story()}"
        return self.last_report(out)

    @staticmethod
    def last_report(out: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found


def wait_started(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
