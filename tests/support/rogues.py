"""Starts rogue sessions (tests/support/rogue.py); all of them end with their test."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from typing import Any

from tests.support.salusd import ROOT, Salusd


class RogueHandle:
    def __init__(self, daemon: Salusd, **options: int) -> None:
        arguments = ["--control", str(daemon.control), "--socket", str(daemon.socket)]
        for name, value in options.items():
            arguments += [f"--{name}", str(value)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.rogue", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip

    def do(self, command: str, **fields: Any) -> dict[str, Any]:
        self.process.stdin.write(f"{command} {json.dumps(fields)}\n" if fields else f"{command}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"rogue ended with {self.process.wait(30)} at {command}"
        return json.loads(line)

    def send(self, command: str) -> None:
        """Do it without waiting for an answer."""
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def is_gone(self) -> bool:
        return self.process.poll() is not None

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
