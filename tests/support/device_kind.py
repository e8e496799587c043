"""Which kind of device the daemon's integration suite runs on: `SALUS_TEST_DEVICE=host` (default), `cuda` or `gpu`.

On `cuda`, salusd uses an emulated GPU through cuda-python and NVML, and workers preload the CUDA part of libsalus in
place of the driver. On `gpu`, it uses as much of the first GPU as the test says. The tests are the same.
"""

from __future__ import annotations

import os
from pathlib import Path

import pynvml

from tests.support import emulator

KIND = os.environ.get("SALUS_TEST_DEVICE", "host")
IS_CUDA = KIND in ("cuda", "gpu")
#: Makes a worker use a GPU.
MARK = {"SALUS_TEST_GPU": "1"}


def mebibytes(size: str) -> int:
    return int(size[:-1]) * {"M": 1, "G": 1024}[size[-1]]


def make_gpu(directory: Path, memory: str) -> tuple[dict[str, str], str]:
    """A GPU of that size: the environment for daemon and workers, and the lines of salus.conf.

    Contexts on the emulated GPU take no memory, so sizes mean the same as on a host device.
    """
    if KIND == "gpu":
        return MARK, f"AutoDetect=off\nDeviceName=gpu0 Type=cuda Uuid={_first_uuid()} Memory={memory}"
    made = emulator.make(directory, f"tiny-1g={mebibytes(memory)}/0")
    found = made.environment()
    return {**MARK, **{name: found[name] for name in ("LD_LIBRARY_PATH", "SALUS_EMULATOR_STATE")}}, "AutoDetect=nvml"


def _first_uuid() -> str:
    pynvml.nvmlInit()
    try:
        return str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0)))
    finally:
        pynvml.nvmlShutdown()


def worker_environment(daemon: dict[str, str]) -> dict[str, str]:
    library = emulator.ROOT / "nodedaemon/job/libsalus/cuda/libcuda.so.1"
    return {**daemon, "LD_PRELOAD": str(library)} if daemon else {}
