"""Runs the five examples as jobs of a salusd, with small sizes, and compares their results with a plain process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from nodedaemon.core import events
from nodedaemon.core.commands import Command, Grant, Revoke
from nodedaemon.core.events import Event
from nodedaemon.core.types import JobClass
from nodedaemon.service.journal.dispatcher import replay
from nodedaemon.service.journal.segments import read_journal
from tests.support.salusd import ROOT, Salusd, wait_until
from tests.support.workers import Crew

MIB = 1 << 20
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


@dataclass(frozen=True)
class Example:
    """One of examples/, with sizes that make iterations short, and how many iterations take about a second."""

    name: str
    options: tuple[str, ...]
    iterations_per_s: int

    def command(self, seconds: float, *more: str) -> list[str]:
        count = max(2, round(self.iterations_per_s * seconds))
        return [f"examples/{self.name}.py", "--iterations", str(count), *self.options, *more]


EXAMPLES = (
    Example("cnn", ("--batch", "8"), 68),
    Example("transformer", ("--batch", "2", "--length", "32"), 36),
    Example("lstm", ("--batch", "8"), 110),
    Example("gan", (), 240),
    Example("inference", ("--batch", "128"), 660),
)


class PlainRun:
    """Runs the same commands without Salus, in one process beside the test."""

    def __init__(self, commands: Mapping[str, Sequence[str]]) -> None:
        self._names = list(commands)
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/support/plain_examples.py"), json.dumps(list(commands.values()))],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=ENVIRONMENT | {"SALUS_DISABLE": "1"},
        )

    def checksums(self, timeout_s: float) -> dict[str, str]:
        printed = json.loads(self._process.communicate(timeout=timeout_s)[0])
        return {name: _checksum(text) for name, text in zip(self._names, printed, strict=True)}

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


class ExampleJobs:
    """Jobs under one salusd. A worker holds the only lane until all jobs wait at their first boundary."""

    def __init__(self, daemon: Salusd, crew: Crew) -> None:
        self.daemon = daemon
        self._commands: dict[str, list[str]] = {}
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._plain: PlainRun | None = None
        self._blocker = crew.start(iteration_us=1 << 40, persistent=4, ephemeral=96)
        crew.ready(self._blocker)
        self._blocker.go()
        daemon.wait_for(lambda status: any(s["state"] == "running" for s in status["sessions"]), "the lane is held")

    def start(self, name: str, command: list[str], *, job_class: str = "normal", remaining_s: int = 60) -> None:
        request = {
            "name": name,
            "persistent_bytes": 400 * MIB,
            "ephemeral_bytes": 96 * MIB,
            "class": job_class,
            "remaining_s": remaining_s,
            "wait_ms": 60000,
        }
        self._commands[name] = command
        self._processes[name] = subprocess.Popen(
            [sys.executable, "-m", "tests.support.launch", str(self.daemon.control), json.dumps(request),
             sys.executable, *command],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=ENVIRONMENT,
        )  # fmt: skip

    def release(self) -> None:
        """Let all start at once. No job has had service before, so none has to wait for the others' share."""
        wait_until(
            lambda: sum(s["state"] == "waiting" for s in self.daemon.status()["sessions"]) == len(self._processes),
            "all jobs wait at their first boundary",
            lambda: f"{self.daemon.status()['sessions']}\n{self.daemon.log_tail()}",
            deadline_s=300,
        )
        self._blocker.close()
        self._plain = PlainRun(self._commands)

    def sessions(self) -> dict[str, dict[str, Any]]:
        """Live sessions of the jobs by name."""
        return {one["name"]: one for one in self.daemon.status()["sessions"] if one["name"] in self._processes}

    def are_over(self) -> bool:
        return all(process.poll() is not None for process in self._processes.values())

    def finish(self, timeout_s: float = 280) -> None:
        """Wait for all jobs, and check that they computed the same parameters as the plain run."""
        assert self._plain is not None
        with ThreadPoolExecutor(len(self._processes)) as pool:
            outputs = dict(
                zip(
                    self._processes,
                    pool.map(lambda one: one.communicate(timeout=timeout_s)[0], self._processes.values()),
                    strict=True,
                )
            )
        for name, process in self._processes.items():
            assert process.returncode == 0, outputs[name][-2000:]
        shared = {name: _checksum(text) for name, text in outputs.items()}
        assert shared == self._plain.checksums(timeout_s)
        self.daemon.wait_for(lambda status: not status["sessions"] and not status["lanes"], "all memory is free")

    def close(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.communicate()
        if self._plain is not None:
            self._plain.close()


def _checksum(output: str) -> str:
    found = [line for line in output.splitlines() if line.startswith("checksum ")]
    assert found, output[-2000:]
    return found[-1]


class HighWaits:
    """From the journal: for each wait of a class high session, how many grants of others began while it lasted.

    salusd starts a grant, or a peer hands it over to the successor that salusd named.
    """

    def __init__(self, daemon: Salusd) -> None:
        self.overtaken: list[int] = []
        self._high: set[int] = set()
        self._others = 0
        self._waiting: set[int] = set()
        self._offered: dict[int, int] = {}
        for segment in read_journal(daemon.state / "journal"):
            self._waiting.clear()
            self._offered.clear()
            replay(segment, self._watch)

    def _watch(self, event: Event, _now_ns: int, made: list[Command]) -> None:
        if isinstance(event, events.SessionArrived) and event.job_class is JobClass.HIGH:
            self._high.add(event.session)
        if isinstance(event, events.GrantReturned) and event.handed_over in self._offered:
            self._begin(self._offered[event.handed_over])
        wants_grant = isinstance(event, events.GrantWanted) or (
            isinstance(event, events.GrantReturned) and event.wants_next
        )
        if wants_grant and event.session in self._high:
            self._waiting.add(event.session)
            self._others = 0
        for command in made:
            if isinstance(command, Revoke) and command.successor is not None:
                self._offered[command.successor_epoch] = command.successor
            elif isinstance(command, Grant):
                self._begin(command.session)

    def _begin(self, session: int) -> None:
        if session in self._waiting:
            self._waiting.discard(session)
            self.overtaken.append(self._others)
        elif self._waiting:
            self._others += 1
