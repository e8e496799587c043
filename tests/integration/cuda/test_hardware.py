"""Tests for a machine with a GPU (`make test-gpu`): the self-test, and loops that share the real device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cuda_node import CudaNode, build_libsalus
from tests.support.emulator import Emulator
from tests.support.salusd import wait_until

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidia0").exists(), reason="needs a GPU: there is no /dev/nvidia0"),
]


class HardwareNode(CudaNode):
    """The same node without the emulator's libraries: the system's own driver is found instead."""

    def __init__(self, config: str = "") -> None:
        super().__init__("tiny-1g", config)
        self.emulator = RealDriver(self.emulator.libraries, self.emulator.state)
        self.environment = self.emulator.environment()


class RealDriver(Emulator):
    def environment(self, **extra: str) -> dict[str, str]:
        found = super().environment(**extra)
        found["LD_LIBRARY_PATH"] = os.environ.get("LD_LIBRARY_PATH", "")
        return found


def test_the_selftest_passes() -> None:
    build_libsalus()
    with HardwareNode() as node:
        node.stop()
        command = [sys.executable, "-m", "cli.main", "-f", str(node.directory / "salus.conf"), "doctor", "--selftest"]
        answer = subprocess.run(
            [*command, "--json", "-N", "n1"], env=node.emulator.environment(), capture_output=True, text=True
        )
    rows = [row for row in json.loads(answer.stdout) if row["check"] == "selftest"]
    assert {row["level"] for row in rows} == {"ok"}, rows


def test_three_loops_take_turns_and_check_their_data() -> None:
    with HardwareNode("MaxLanes=2") as node:
        sizes = {"persistent_mib": 1024, "ephemeral_mib": 128}
        jobs = [node.job("--iterations", "300", *cached, **sizes) for cached in ((), ("--cached",), ("--cached",))]
        for job in jobs:
            report = node.report(job)
            assert (report["attached"], report["wrong"]) == (True, 0), report
        wait_until(lambda: not node.ask("status")["lanes"], "the lanes are closed")
