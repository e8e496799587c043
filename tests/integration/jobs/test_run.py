"""`salus run` on a workstation: a private salusd, real jobs, profiles that make the second run share."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodedaemon.service.private import ping
from tests.support.salusd import wait_until
from tests.support.torch_job import DEADLINE_S, ROOT, example, plain_environment


class Workstation:
    """A user's own directories; the daemon that a command starts in them is ended by its pid."""

    def __init__(self) -> None:
        # Socket paths must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="salus-run-"))
        self.environment = plain_environment() | {
            "PYTHONPATH": str(ROOT),
            "XDG_RUNTIME_DIR": str(self.folder),
            "XDG_DATA_HOME": str(self.folder),
        }
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        self.started.append(
            subprocess.Popen(
                [sys.executable, "-m", "cli.main", *arguments],
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return self.started[-1]

    def run(self, *options: str, command: list[str]) -> subprocess.Popen[str]:
        return self.start("run", *options, "--", sys.executable, *command)

    def daemon_pid(self) -> int | None:
        return ping(self.folder / "salus" / "run" / "control.sock")

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        pid = self.daemon_pid()
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
            wait_until(lambda: not _is_alive(pid), "the private salusd ends")
        shutil.rmtree(self.folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


@pytest.fixture
def workstation() -> Iterator[Workstation]:
    made = Workstation()
    yield made
    made.close()


def test_jobs_run_alone_first_and_share_from_the_second_run_on(workstation: Workstation) -> None:
    command = example("lstm", iterations=6, width=32)
    plain = subprocess.run(
        [sys.executable, *command],
        env=plain_environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    first = workstation.run("--policy", "fair", "--memory", "1G", command=command)
    output, errors = first.communicate(timeout=DEADLINE_S)
    assert (first.returncode, output, errors) == (0, plain.stdout, "")
    # Two at once: if they were unknown, one would wait for the other and print a message.
    both = [workstation.run(command=command) for _ in range(2)]
    for job in both:
        assert job.communicate(timeout=DEADLINE_S) == (plain.stdout, "")
    status, _ = workstation.start("status", "--json").communicate(timeout=DEADLINE_S)
    assert "fair" in status


def test_the_exit_code_is_the_jobs(workstation: Workstation) -> None:
    job = workstation.run("--memory", "1G", command=["-c", "import sys; sys.exit(7)"])
    job.communicate(timeout=DEADLINE_S)
    assert job.returncode == 7
