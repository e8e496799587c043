"""Fixture of the CUDA tests: a node with two emulated GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import emulator as emulators


@pytest.fixture
def emulator(tmp_path: Path) -> emulators.Emulator:
    return emulators.make(tmp_path, "a100-40g,t4-16g")
