"""A PyTorch program in its own process; `close` ends it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
JOB = ROOT / "nodedaemon" / "job"
EXAMPLES = ROOT / "examples"
# Long enough for a busy machine: importing torch alone takes 2.5 s of CPU.
DEADLINE_S = 240.0


def plain_environment() -> dict[str, str]:
    """The environment of a job without Salus.

    It has one thread: two jobs with two OpenMP threads each take six times as long on two cores (measured).
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SALUS_", "PYTHONPATH"))}
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


class TorchJob:
    def __init__(self, *command: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command],
            env=plain_environment() | environment,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.errors = ""

    def output(self) -> str:
        """Its standard output, once it has ended. `process.returncode` and `errors` have the rest."""
        text, self.errors = self.process.communicate(timeout=DEADLINE_S)
        return text

    def finish(self) -> str:
        """As `output`; fails the test if the job failed or Salus printed a message."""
        text = self.output()
        assert self.process.returncode == 0, self.errors
        assert "salus:" not in self.errors, self.errors
        return text

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=DEADLINE_S)


def example(name: str, **options: int) -> list[str]:
    """The command line of an example with these options."""
    return [
        str(EXAMPLES / f"{name}.py"),
        *(part for key, value in options.items() for part in (f"--{key}", str(value))),
    ]
