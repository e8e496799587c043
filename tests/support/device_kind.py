"""Which kind of device the daemon's integration suite runs on: `SALUS_TEST_DEVICE=host` (default) or `cuda`.

On cuda the daemon drives an emulated GPU through cuda-python and NVML, and workers are sessions of the CUDA part of
libsalus, preloaded in the driver's place. Nothing else of the suite changes.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.support import emulator

IS_CUDA = os.environ.get("SALUS_TEST_DEVICE", "host") == "cuda"


def mebibytes(size: str) -> int:
    return int(size[:-1]) * {"M": 1, "G": 1024}[size[-1]]


def make_gpu(directory: Path, memory: str) -> dict[str, str]:
    """An emulated GPU of that size, whose contexts cost nothing so that sizes mean what they mean on host."""
    made = emulator.make(directory, f"tiny-1g={mebibytes(memory)}/0")
    found = made.environment()
    return {name: found[name] for name in ("LD_LIBRARY_PATH", "SALUS_EMULATOR_STATE")}


def worker_environment(daemon: dict[str, str]) -> dict[str, str]:
    library = emulator.ROOT / "nodedaemon/job/libsalus/cuda/libcuda.so.1"
    return {**daemon, "LD_PRELOAD": str(library)} if daemon else {}
