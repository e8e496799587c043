"""Real PyTorch jobs; all are ended with the test."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.support.launch import launch_arguments
from tests.support.salusd import Salusd
from tests.support.torch_job import JOB, ROOT, TorchJob

MIB = 1 << 20
#: Sizes with which a job shares its device.
SIZES: dict[str, object] = {"persistent_bytes": 400 * MIB, "ephemeral_bytes": 32 * MIB, "wait_ms": 60_000}


@pytest.fixture(scope="session", autouse=True)
def native() -> None:
    # Several workers of one test run must not build at once.
    with (JOB / "libsalus" / "Makefile").open() as only_one:
        fcntl.flock(only_one, fcntl.LOCK_EX)
        subprocess.run(["make", "-s", "-C", JOB / "libsalus", "all", "tests"], check=True)


@pytest.fixture
def start_job() -> Iterator[Callable[..., TorchJob]]:
    jobs: list[TorchJob] = []

    def start(
        *command: str, daemon: Salusd | None = None, run: dict[str, object] = SIZES, **environment: str
    ) -> TorchJob:
        """Start a Python program, as a job of the daemon if there is one. `run` is what `salus run` would send."""
        if daemon is not None:
            command = (*launch_arguments(daemon, run), sys.executable, *command)
            environment = {"PYTHONPATH": str(ROOT)} | environment
        jobs.append(TorchJob(*command, **environment))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()
