"""A GPU as a device: lane memory from the CUDA driver's virtual memory management, readings from NVML.

It uses only `cuda.bindings.driver`, never the runtime. The daemon creates lane memory, exports it as a file descriptor
and counts it once. It cannot take the memory back from a process that imported it. So a release drops the daemon's
handle, and it is complete when the device's free memory has grown by the lane's size. Persistent memory belongs to the
jobs, so NVML attributes it to the right process. The daemon's own context is subtracted from the usable bytes.
"""

from __future__ import annotations

import os
import uuid as uuid_module
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from nodedaemon.core.errors import OperatingError, PeerError
from nodedaemon.core.types import SECOND_NS, DeviceId
from nodedaemon.drivers.deadline import DeadlineThread
from nodedaemon.drivers.device import Capabilities, LaneMemory, Reading
from nodedaemon.drivers.nvml import LOST, Nvml
from nodedaemon.drivers.process import file_identity, find_holders
from nodedaemon.drivers.procfs import PROC, read_lines

T = TypeVar("T")


class DriverError(Exception):
    """A call of the driver failed; the text is the name of its result code."""


def checked(driver: Any, answer: tuple[Any, ...]) -> Any:
    """The values that a call of the driver returns. Raises `DriverError` if it failed."""
    if answer[0] != driver.CUresult.CUDA_SUCCESS:
        raise DriverError(answer[0].name)
    return answer[1] if len(answer) == 2 else answer[1:]


def map_memory(driver: Any, handle: Any, address: Any, size_bytes: int, device: int) -> None:
    """Map an allocation at a reserved address, readable and writable for one device."""
    checked(driver, driver.cuMemMap(address, size_bytes, 0, handle, 0))
    access = driver.CUmemAccessDesc()
    access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = device
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    checked(driver, driver.cuMemSetAccess(address, size_bytes, [access], 1))


def load_driver() -> Any:
    """cuda-python's driver bindings. Raises `OperatingError` if they, the driver or a device are missing."""
    try:
        from cuda.bindings import driver  # noqa: PLC0415 - only nodes with GPUs have it
    except ImportError as error:
        raise OperatingError("load CUDA: cuda-python is not installed; install salus[cuda]") from error
    try:
        code = driver.cuInit(0)[0]
    except RuntimeError as error:
        raise OperatingError(f"load CUDA: libcuda.so.1: {error}; is the GPU driver installed?") from error
    if code != driver.CUresult.CUDA_SUCCESS:
        raise OperatingError(f"load CUDA: cuInit: {code.name}; see salus doctor")
    return driver


def loaded_library(name: str) -> str:
    """Path of a library that this process has loaded, or "". Jobs need libcuda's, because ours shadows its name."""
    fields = (line.split(maxsplit=5) for line in read_lines(PROC / "self" / "maps"))
    paths = (os.fsdecode(line[5]) for line in fields if len(line) > 5)
    return next((path for path in paths if Path(path).name.startswith(name)), "")


def select_devices(uuids: Sequence[DeviceId], visible: str | None) -> tuple[DeviceId, ...]:
    """The devices that a CUDA_VISIBLE_DEVICES value names, in its order: indices, UUIDs or unique UUID prefixes.

    As in the driver, the first entry that names no device ends the list, and None (unset) means all.
    """
    if visible is None:
        return tuple(uuids)
    found: list[DeviceId] = []
    for entry in visible.split(","):
        name = entry.strip()
        if name.isdigit() and int(name) < len(uuids):
            chosen = uuids[int(name)]
        elif name.startswith(("GPU-", "MIG-")) and len(match := [u for u in uuids if u.startswith(name)]) == 1:
            chosen = match[0]
        else:
            break
        if chosen in found:
            break
        found.append(chosen)
    return tuple(found)


def discover(nvml: Nvml, visible: str | None = None, timeout_ns: int = 5 * SECOND_NS) -> tuple[CudaDevice, ...]:
    """Every GPU or MIG instance that `visible` allows, opened. NVML's order is the order of indices."""
    listings = {listing.uuid: listing for listing in nvml.devices()}
    chosen = select_devices(tuple(listings), visible)
    return tuple(CudaDevice(uuid, listings[uuid].gpu_index, nvml, timeout_ns=timeout_ns) for uuid in chosen)


class Wiped(NamedTuple):
    """A lane whose handle the daemon has released, with the state of the device at that moment.

    The lane's memory is free once the device has `wanted_free_bytes`, minus what others have allocated since.
    """

    wanted_free_bytes: int
    opened_bytes: int
    others_bytes: dict[int, int]


class CudaDevice:
    """Implements `nodedaemon.drivers.device.DeviceDriver` on one GPU."""

    kind = "cuda"
    capabilities = Capabilities(
        gates_launches=True, limits_memory=True, runs_mps=True, lists_processes=True, bounds_lanes=True
    )
    is_slow = True
    cores: tuple[int, ...] = ()

    def __init__(self, uuid: DeviceId, index: int, nvml: Nvml, *, timeout_ns: int = 5 * SECOND_NS) -> None:
        self.uuid = uuid
        self.index = index
        self._nvml = nvml
        self._driver: Any = None
        self._thread = DeadlineThread(f"cuda {index}", timeout_ns)
        self._handles: dict[str, Any] = {}
        self._wiped: dict[str, Wiped] = {}
        self._opened_bytes = 0
        # A critical Xid, until the device has answered again.
        self._xid = ""
        self._is_xid_raised = False
        self.xids_ignored: frozenset[int] = frozenset()
        self._call("open device", self._open)
        self._driver_path = loaded_library("libcuda.so")
        own_bytes = nvml.process_bytes(uuid, os.getpid())
        self.context_bytes = own_bytes if own_bytes is not None else self._context_bytes
        self.usable_bytes = self.total_bytes
        self.cap(self.total_bytes - self.context_bytes)

    def cap(self, memory_bytes: int) -> None:
        """Use at most `memory_bytes` of the device; the rest belongs to others."""
        self.usable_bytes = min(self.usable_bytes, memory_bytes) // self.granularity_bytes * self.granularity_bytes

    def open_lane(self, size_bytes: int) -> LaneMemory:
        def work() -> LaneMemory:
            handle = self._ok(self._driver.cuMemCreate(size_bytes, self._properties(), 0))
            try:
                self._zero(handle, size_bytes)
                memory = self._export(handle, size_bytes)
                self._opened_bytes += size_bytes
                return memory
            except DriverError:
                self._driver.cuMemRelease(handle)
                raise

        return self._call(f"open lane: {size_bytes} bytes", work)

    def adopt_lane(self, fd: int, identity: str, size_bytes: int) -> LaneMemory:
        if identity in self._handles:
            return LaneMemory(self._handles[identity][1], identity, size_bytes)

        def work() -> LaneMemory:
            handle = self._ok(self._driver.cuMemImportFromShareableHandle(fd, self._handle_type()))
            self._handles[identity] = (handle, os.dup(fd))
            return LaneMemory(self._handles[identity][1], identity, size_bytes)

        if _identity(fd) not in (None, identity):
            raise PeerError(f"adopt lane: {self.name}: {identity}: the descriptor is not that lane's memory")
        try:
            return self._call(f"adopt lane: {identity}", work)
        except OperatingError as error:
            raise PeerError(f"adopt lane: {self.name}: {identity}: {error}") from error

    def wipe_lane(self, memory: LaneMemory) -> int:
        def work() -> int:
            if memory.identity in self._handles:
                free_bytes = self._free_bytes()
                self._drop(memory.identity)
                self._wiped[memory.identity] = Wiped(
                    free_bytes + memory.size_bytes, self._opened_bytes, self._others_bytes()
                )
            wiped = self._wiped.get(memory.identity)
            if wiped is None or self._free_bytes() >= wiped.wanted_free_bytes - self._allocated_since(wiped):
                self._wiped.pop(memory.identity, None)
                return 0
            return memory.size_bytes

        return self._call(f"release lane: {memory.identity}", work)

    def _allocated_since(self, wiped: Wiped) -> int:
        """Bytes allocated since the daemon released its handle: by processes that grew, and for other lanes."""
        grown_bytes = sum(
            max(0, used_bytes - wiped.others_bytes.get(pid, 0)) for pid, used_bytes in self._others_bytes().items()
        )
        return grown_bytes + self._opened_bytes - wiped.opened_bytes

    def _others_bytes(self) -> dict[int, int]:
        """Device memory by process, without our own."""
        try:
            processes = self._nvml.read(self.uuid).processes
        except OperatingError:
            return {}
        return {process.pid: process.used_bytes for process in processes if process.pid != os.getpid()}

    def held_bytes(self, memory: LaneMemory) -> int:
        is_held = memory.identity in self._handles or memory.identity in self._wiped
        return memory.size_bytes if is_held else 0

    def share_lane(self, memory: LaneMemory) -> int:
        return os.dup(memory.fd)

    def is_shared(self, memory: LaneMemory) -> bool | None:  # noqa: ARG002 - free memory decides (`wipe_lane`)
        return None

    def find_holders(self, memory: LaneMemory, pids: Collection[int] | None) -> set[int]:
        """Holders are visible only if the memory is its own file. If not, all processes on the GPU are suspects."""
        scheme, _, identity = memory.identity.partition(":")
        if scheme == "file":
            return find_holders(identity, pids)
        return set(self._others_bytes()) if pids is None else set()

    def close_lane(self, memory: LaneMemory) -> None:
        self._wiped.pop(memory.identity, None)
        if memory.identity in self._handles:
            self._call(f"close lane: {memory.identity}", lambda: self._drop(memory.identity))

    def limit_group(self, cgroup: str, limit_bytes: int | None) -> bool:
        return self._nvml.set_memory_limit(self.uuid, cgroup, limit_bytes)

    def read(self, pids: Collection[int]) -> Reading:  # noqa: ARG002 - NVML lists processes itself
        """Report a critical Xid once. After that, readings fail until the device answers again.

        At least one reading must fail: whatever ran on the device is lost, and the engine has to know that.
        """
        if self._xid:
            self._check_recovery()
        reading = self._nvml.read(self.uuid)
        if LOST in reading.faults:
            raise OperatingError(
                f"read GPU: {self.name}: it has fallen off the bus; see dmesg, then reset or replace it"
            )
        xids = self._nvml.pop_xids(self.uuid)
        critical = tuple(f"xid {number}" for number in xids if number not in self.xids_ignored)
        self._xid = critical[-1] if critical else ""
        return replace(reading, faults=(*reading.faults, *critical)) if critical else reading

    def _check_recovery(self) -> None:
        if not self._is_xid_raised:
            self._is_xid_raised = True
            raise OperatingError(f"read GPU: {self.name}: {self._xid}; see dmesg and NVIDIA's Xid catalog")
        self._call("check device", self._free_bytes)
        self._xid, self._is_xid_raised = "", False

    def job_environment(self, adaptor_dir: Path) -> dict[str, str]:
        library = adaptor_dir / "libsalus" / "cuda" / "libcuda.so.1"
        if not library.exists():
            return {}
        return {"LD_PRELOAD": str(library), "SALUS_CUDA_DRIVER": self._driver_path}

    def visible_as(self, name: str) -> dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": name}

    def close(self) -> None:
        def work() -> None:
            for identity in list(self._handles):
                self._drop(identity)
            self._driver.cuDevicePrimaryCtxRelease(self._device)

        if not self._thread.is_hung:
            self._call("close device", work)
        self._thread.close()

    def _call(self, what: str, work: Callable[[], T]) -> T:
        name = getattr(self, "name", self.uuid)
        try:
            return self._thread.call(f"{what}: {name}", work)
        except DriverError as error:
            raise OperatingError(f"{what}: {name}: {error}; {_advice(str(error))}") from error

    def _ok(self, answer: tuple[Any, ...]) -> Any:
        return checked(self._driver, answer)

    def _open(self) -> None:
        self._driver = load_driver()
        self._device = self._find()
        self.name = self._ok(self._driver.cuDeviceGetName(96, self._device)).split(b"\0")[0].decode()
        self.model = self.name
        free_before = self._nvml_free_bytes()
        self._context = self._ok(self._driver.cuDevicePrimaryCtxRetain(self._device))
        self._ok(self._driver.cuCtxSetCurrent(self._context))
        self._context_bytes = max(0, free_before - self._free_bytes())
        attribute = self._driver.CUdevice_attribute
        for name in ("VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED"):
            wanted = getattr(attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
            if not self._ok(self._driver.cuDeviceGetAttribute(wanted, self._device)):
                raise OperatingError(f"open device: {self.name}: {name}: not supported; lanes need it, use another GPU")
        self.total_bytes = self._ok(self._driver.cuDeviceTotalMem(self._device))
        minimum = self._driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.granularity_bytes = self._ok(self._driver.cuMemGetAllocationGranularity(self._properties(), minimum))

    def _nvml_free_bytes(self) -> int:
        reading = self._nvml.read(self.uuid)
        return reading.total_bytes - reading.used_bytes

    def _find(self) -> Any:
        for ordinal in range(self._ok(self._driver.cuDeviceGetCount())):
            device = self._ok(self._driver.cuDeviceGet(ordinal))
            # Only the _v2 form returns the UUID of a MIG instance. CUDA 13 has only that form, without the suffix.
            for ask in {self._driver.cuDeviceGetUuid, getattr(self._driver, "cuDeviceGetUuid_v2", None)} - {None}:
                raw = uuid_module.UUID(bytes=bytes(self._ok(ask(device)).bytes)[:16])
                if self.uuid in (f"GPU-{raw}", f"MIG-{raw}"):
                    return device
        raise OperatingError(f"open device: {self.uuid}: not visible to CUDA; check CUDA_VISIBLE_DEVICES of salusd")

    def _handle_type(self) -> Any:
        return self._driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

    def _properties(self) -> Any:
        driver = self._driver
        properties = driver.CUmemAllocationProp()
        properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.requestedHandleTypes = self._handle_type()
        properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = int(self._device)
        return properties

    def _zero(self, handle: Any, size_bytes: int) -> None:
        """Zero the memory: the next user must not read old bytes, whatever the driver guarantees about new memory."""
        driver = self._driver
        address = self._ok(driver.cuMemAddressReserve(size_bytes, 0, 0, 0))
        try:
            map_memory(driver, handle, address, size_bytes, int(self._device))
            self._ok(driver.cuMemsetD8(address, 0, size_bytes))
            self._ok(driver.cuCtxSynchronize())
        finally:
            # Fails without harm if nothing was mapped.
            driver.cuMemUnmap(address, size_bytes)
            driver.cuMemAddressFree(address, size_bytes)

    def _export(self, handle: Any, size_bytes: int) -> LaneMemory:
        fd = int(self._ok(self._driver.cuMemExportToShareableHandle(handle, self._handle_type(), 0)))
        identity = _identity(fd) or f"handle:{uuid_module.uuid4()}"
        self._handles[identity] = (handle, fd)
        return LaneMemory(fd, identity, size_bytes)

    def _drop(self, identity: str) -> None:
        handle, fd = self._handles.pop(identity)
        # Both the descriptor and the handle keep the memory allocated.
        os.close(fd)
        self._ok(self._driver.cuMemRelease(handle))

    def _free_bytes(self) -> int:
        return int(self._ok(self._driver.cuMemGetInfo())[0])


def _advice(name: str) -> str:
    if name == "CUDA_ERROR_OUT_OF_MEMORY":
        return "another program uses device memory: see salus status and the processes in nvidia-smi"
    if name in ("CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA_ERROR_ECC_UNCORRECTABLE"):
        return "the device has failed: see dmesg, reset the GPU, then salus resume"
    return "see salus doctor"


def _identity(fd: int) -> str | None:
    """`file:DEVICE:INODE` if the memory is a file of its own. All descriptors of a real driver share one inode."""
    try:
        if not str(Path(f"/proc/self/fd/{fd}").readlink()).startswith("/memfd:"):
            return None
        return f"file:{file_identity(os.fstat(fd))}"
    except OSError as error:
        raise PeerError(f"lane memory: descriptor {fd}: {error.strerror}") from error
