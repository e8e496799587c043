"""Starts workers (tests/support/worker.py) and reads their reports; all of them end with their test."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from bisect import bisect_left
from pathlib import Path
from typing import Any

from tests.support.device_kind import worker_environment
from tests.support.salusd import DEADLINE_S, ROOT, Salusd, wait_until

PROGRAM = Path(__file__).with_name("worker.py")


class Worker:
    def __init__(self, daemon: Salusd, **options: Any) -> None:
        arguments = ["--control", str(daemon.control), "--socket", str(daemon.socket)]
        for name, value in options.items():
            flag = f"--{name.replace('_', '-')}"
            arguments += [flag] if value is True else [flag, str(value)]
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **worker_environment(daemon.gpu)},
        )
        self.reports: list[dict[str, Any]] = []
        self._iterations: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            one = json.loads(line)
            (self._iterations if one["what"] == "iteration" else self.reports).append(one)

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_report(self, what: str) -> dict[str, Any]:
        def find() -> dict[str, Any] | None:
            return next((one for one in list(self.reports) if one["what"] == what), None)

        is_over = self.process.poll
        found = wait_until(
            lambda: find() or is_over() is not None, f"the worker reports {what}", lambda: str(self.reports[-5:])
        )
        if found is True:
            self._reader.join(DEADLINE_S)
            found = find()
            assert found is not None, f"worker ended with {self.process.returncode} before {what}: {self.reports[-5:]}"
        return found

    @property
    def job(self) -> str:
        return str(self.wait_report("job")["job"])

    def go(self) -> None:
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def iterations(self) -> list[dict[str, Any]]:
        return self._iterations[:]

    @property
    def iteration_count(self) -> int:
        return len(self._iterations)

    def count_since(self, start_ns: int) -> int:
        """Iterations that began then or later."""
        return len(self._iterations) - bisect_left(self._iterations, start_ns, key=lambda one: one["start_ns"])

    def forget_iterations(self) -> None:
        """Drop the iterations reported so far, for a worker that runs for a long time."""
        del self._iterations[:]

    def wait_iterations(self, count: int) -> None:
        wait_until(
            lambda: self.iteration_count >= count,
            f"worker {self.pid} does {count} iterations",
            lambda: f"did {self.iteration_count}, last report {self.reports[-1:]}",
        )

    def stop(self) -> None:
        """End the loop after the current iteration."""
        if not self.process.stdin.closed:
            self.process.stdin.close()

    def finish(self) -> dict[str, Any]:
        """Wait until all its iterations are done and the process has ended."""
        self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        assert self.process.returncode == 0, f"worker ended with {self.process.returncode}: {self.reports[-3:]}"
        return next(one for one in self.reports if one["what"] == "done")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._reader.join(DEADLINE_S)
        self.process.stdin.close()
        self.process.stdout.close()


class Crew:
    """All workers of a test."""

    def __init__(self, daemon: Salusd) -> None:
        self.daemon = daemon
        self.workers: list[Worker] = []

    def start(self, **options: Any) -> Worker:
        worker = Worker(self.daemon, **options)
        self.workers.append(worker)
        return worker

    def ready(self, *workers: Worker) -> None:
        for worker in workers or self.workers:
            assert worker.wait_report("hello")["code"] == 0, worker.reports

    def close(self) -> None:
        for worker in self.workers:
            worker.close()


def overlaps(workers: list[Worker]) -> int:
    """How many pairs of iterations of different workers ran at the same time."""
    spans = sorted(
        (one["start_ns"], one["end_ns"], index) for index, worker in enumerate(workers) for one in worker.iterations()
    )
    return sum(1 for a, b in itertools.pairwise(spans) if b[0] < a[1] and a[2] != b[2])
