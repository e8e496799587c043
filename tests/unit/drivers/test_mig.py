"""MIG instances are listed in place of their GPU. The emulated NVML has no MIG, so this test has its own fake."""

import pynvml

from nodedaemon.drivers.nvml import Listing, Nvml


class SplitCard:
    """NVML of a node with two GPUs. The second GPU has MIG instances 0 and 2, and its place 1 is empty."""

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
            Listing("GPU-a", 0, "card"),
            Listing("MIG-0", 1, "card"),
            Listing("MIG-2", 1, "card"),
        )
    finally:
        nvml.close()
