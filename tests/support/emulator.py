"""An emulated CUDA node for tests: builds the emulator once, creates a state file, and runs programs on it."""

from __future__ import annotations

import fcntl
import functools
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
MIB = 1024 * 1024
CONTEXT_BYTES = {"a100-40g": 400 * MIB, "t4-16g": 200 * MIB, "tiny-1g": 16 * MIB}
_USED = re.compile(r"^device (\d+) .*\bused_bytes=(\d+)", re.MULTILINE)


def build(variant: str = "emulator") -> Path:
    """Build the libraries. A file lock makes a second test worker wait for the first."""
    out = BUILD / variant
    BUILD.mkdir(exist_ok=True)
    with (BUILD / f".{variant}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        inject = ["INJECT=1"] if variant.endswith("inject") else []
        command = ["make", "-s", "-C", str(ROOT / "emulator"), f"PYTHON={sys.executable}", f"OUT={out}"]
        subprocess.run([*command, *inject], check=True)
    return out


@dataclass(frozen=True)
class Emulator:
    """One state file and the libraries that use it."""

    libraries: Path
    state: Path

    def environment(self, **extra: str) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SALUS_", "CUDA_"))}
        return {
            **inherited,
            "LD_LIBRARY_PATH": str(self.libraries),
            "SALUS_EMULATOR_STATE": str(self.state),
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            **extra,
        }

    def control(self, *arguments: str, check: bool = True) -> str:
        program = self.libraries / "salus-emulator"
        answer = subprocess.run(
            [program, *arguments], env=self.environment(), capture_output=True, text=True, timeout=30, check=False
        )
        if check and answer.returncode != 0:
            raise AssertionError(f"salus-emulator {arguments}: {answer.returncode}: {answer.stdout}{answer.stderr}")
        return answer.stdout

    def used_bytes(self, device: int = 0) -> int:
        return {int(index): int(used) for index, used in _USED.findall(self.control("show"))}[device]

    def run(self, code: str, *, check: bool = True, **extra: str) -> subprocess.CompletedProcess[str]:
        """Run Python code on the emulated node and wait for it."""
        answer = subprocess.run(
            [sys.executable, "-c", code],
            env=self.environment(**extra),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if check and answer.returncode != 0:
            raise AssertionError(f"exit {answer.returncode}\n{answer.stdout}\n{answer.stderr}")
        return answer


@functools.cache
def bindings_129() -> Path:
    """A folder with cuda-bindings 12.9: the one that `make setup` made, or one that is downloaded once into build/."""
    fetched = Path(sys.prefix) / "cuda129"
    if list(fetched.glob("cuda_bindings-12.9.*")):
        return fetched
    target = BUILD / "cuda129"
    with (BUILD / ".cuda129.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(target.glob("cuda_bindings-12.9.*")):
            command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--require-hashes"]
            pinned = ["--target", str(target), "-r", str(ROOT / ".ci" / "cuda129.txt")]
            subprocess.run([*command, *pinned], check=True, capture_output=True)
    return target


def make(directory: Path, devices: str = "a100-40g", variant: str = "emulator") -> Emulator:
    emulator = Emulator(build(variant), directory / "devices")
    emulator.control("create", devices)
    return emulator
