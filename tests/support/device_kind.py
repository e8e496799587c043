"""Which kind of device the daemon's integration suite runs on: `SALUS_TEST_DEVICE=host` (default), `cuda` or `gpu`.

On cuda the daemon drives an emulated GPU through cuda-python and NVML, and workers are sessions of the CUDA part of
libsalus, preloaded in the driver's place. On gpu it is the first GPU of this machine, of which Salus gets as much as
the test says. Nothing else of the suite changes.
"""

from __future__ import annotations

import os
from pathlib import Path

import pynvml

from tests.support import emulator

KIND = os.environ.get("SALUS_TEST_DEVICE", "host")
IS_CUDA = KIND in ("cuda", "gpu")
#: Tells a worker that it is to use a GPU.
MARK = {"SALUS_TEST_GPU": "1"}


def mebibytes(size: str) -> int:
    return int(size[:-1]) * {"M": 1, "G": 1024}[size[-1]]


def make_gpu(directory: Path, memory: str) -> tuple[dict[str, str], str]:
    """A GPU of that size: what daemon and workers need in their environment, and the lines of salus.conf.

    An emulated one's contexts cost nothing, so that sizes mean what they mean on host.
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
