"""MIG instances are listed in place of the GPU that is split; a fake with NVML's behaviour stands for such a card."""

from types import SimpleNamespace
from typing import Any

import pynvml

from nodedaemon.drivers.nvml import Listing, Nvml


class SplitCard:
    """NVML of a node with one whole GPU and one split into two instances, the second place empty."""

    NVMLError = pynvml.NVMLError
    NVMLError_NotSupported = pynvml.NVMLError_NotSupported
    NVMLError_NotFound = pynvml.NVMLError_NotFound
    NVMLError_GpuIsLost = pynvml.NVMLError_GpuIsLost

    def nvmlInit(self) -> None: ...  # noqa: N802
    def nvmlShutdown(self) -> None: ...  # noqa: N802
    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return ("GPU-a", "GPU-b")[index]

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return handle

    def nvmlDeviceGetName(self, handle: str) -> bytes:  # noqa: N802
        return b"card"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:  # noqa: N802
        return SimpleNamespace(total={"GPU-a": 16, "GPU-b": 40}.get(handle, 10))

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:  # noqa: N802
        if handle == "GPU-a":
            raise pynvml.NVMLError_NotSupported
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:  # noqa: N802
        return 3

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, place: int) -> str:  # noqa: N802
        if place == 1:
            raise pynvml.NVMLError_NotFound
        return f"MIG-{place}"


def test_instances_are_listed_in_place_of_their_gpu() -> None:
    nvml = Nvml(SplitCard())
    try:
        assert nvml.devices() == (
            Listing("GPU-a", 0, "card", 16),
            Listing("MIG-0", 1, "card", 10, "GPU-b"),
            Listing("MIG-2", 1, "card", 10, "GPU-b"),
        )
    finally:
        nvml.close()
