"""A PyTorch program in a process of its own, plain or under the adaptor; ended by its id at the latest by `close`."""

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


def environment_of(socket: Path | None) -> dict[str, str]:
    """One thread per job: two jobs with two OpenMP threads each take six times as long on two cores (measured)."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SALUS_", "PYTHONPATH"))}
    kept |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    if socket is not None:
        kept |= {"PYTHONPATH": str(JOB), "SALUS_SOCKET": str(socket)}
    return kept


class TorchJob:
    def __init__(self, *command: str, socket: Path | None = None, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command],
            env=environment_of(socket) | environment,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.errors = ""

    def output(self) -> str:
        """What it printed, once it has ended; the exit code is in `process.returncode`."""
        text, self.errors = self.process.communicate(timeout=DEADLINE_S)
        return text

    def finish(self) -> str:
        """As `output`, for a job that must succeed without a message from Salus."""
        text = self.output()
        assert self.process.returncode == 0, self.errors
        assert "salus:" not in self.errors, self.errors
        return text

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=DEADLINE_S)


def example(name: str, **options: int) -> list[str]:
    """The command line of an example, small."""
    return [
        str(EXAMPLES / f"{name}.py"),
        *(part for key, value in options.items() for part in (f"--{key}", str(value))),
    ]
