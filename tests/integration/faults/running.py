"""Steps that many of these tests share: workers start to run, continue and finish."""

from __future__ import annotations

from typing import Any

from tests.support.workers import Crew, Worker


def start_running(group: Crew, iteration_count: int = 5, **options: Any) -> Worker:
    """Start a worker and return it after its first iterations."""
    worker = group.start(**options)
    group.ready(worker)
    worker.go()
    worker.wait_iterations(iteration_count)
    return worker


def wait_for_more(worker: Worker, iteration_count: int = 20) -> None:
    worker.wait_iterations(worker.iteration_count + iteration_count)


def finish(*workers: Worker) -> None:
    for worker in workers:
        worker.stop()
        worker.finish()
