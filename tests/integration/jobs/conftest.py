"""A stand-in daemon and real PyTorch jobs; everything is ended with the test."""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.support.lane_daemon import LaneDaemon
from tests.support.torch_job import JOB, TorchJob


@pytest.fixture(scope="session", autouse=True)
def native() -> None:
    # Several workers of one test run must not build at once.
    with (JOB / "libsalus" / "Makefile").open() as only_one:
        fcntl.flock(only_one, fcntl.LOCK_EX)
        subprocess.run(["make", "-s", "-C", JOB / "libsalus", "all", "tests"], check=True)


@pytest.fixture
def start_job() -> Iterator[Callable[..., TorchJob]]:
    jobs: list[TorchJob] = []

    def start(*command: str, daemon: LaneDaemon | None = None, **environment: str) -> TorchJob:
        jobs.append(TorchJob(*command, socket=daemon.path if daemon else None, **environment))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()
