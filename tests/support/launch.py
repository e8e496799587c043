"""Registers itself as a job with the salusd of a test, then runs the command: launch.py CONTROL JSON COMMAND..."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from tests.support.worker import start_run

if TYPE_CHECKING:
    from tests.support.salusd import Salusd


def launch_arguments(daemon: Salusd, run: dict[str, object]) -> list[str]:
    """Arguments of a Python that makes the command after them a job of the daemon. `run` is sent with `run_start`."""
    return ["-m", "tests.support.launch", str(daemon.control), json.dumps(run)]


if __name__ == "__main__":
    answer = start_run(sys.argv[1], json.loads(sys.argv[2]))
    if not answer["ok"]:
        sys.exit(f"launch: {answer['why']}")
    parameters = dict(pair.split("=", 1) for pair in answer["env"])
    os.execvpe(sys.argv[3], sys.argv[3:], {**os.environ, **parameters})
