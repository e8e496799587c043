"""Fixtures of the CUDA suite: an emulated node, and cuda-python 12.9 beside the installed one."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import emulator as emulators


@pytest.fixture
def emulator(tmp_path: Path) -> emulators.Emulator:
    return emulators.make(tmp_path, "a100-40g,t4-16g")


@pytest.fixture
def small_emulator(tmp_path: Path) -> emulators.Emulator:
    return emulators.make(tmp_path, "tiny-1g")


@pytest.fixture(scope="session")
def bindings_129() -> Path:
    """cuda-bindings 12.9 in a folder of its own: set-up's, or downloaded once into build/."""
    fetched = Path(sys.prefix) / "cuda129"
    if list(fetched.glob("cuda_bindings-12.9.*")):
        return fetched
    target = emulators.BUILD / "cuda129"
    with (emulators.BUILD / ".cuda129.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(target.glob("cuda_bindings-12.9.*")):
            command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target)]
            subprocess.run([*command, "cuda-bindings==12.9.*", "cuda-pathfinder"], check=True, capture_output=True)
    return target
