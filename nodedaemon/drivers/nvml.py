"""Readings of GPUs through NVML (`pynvml`): memory, processes, utilisation, Xid events, MIG, limits by cgroup.

Every call is made in one thread with a deadline, because NVML blocks when a GPU hangs. Errors of NVML are raised as
`OperatingError`. The reading of a lost GPU has the fault `lost`, because the daemon must continue without that GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import pynvml

from nodedaemon.core.errors import OperatingError
from nodedaemon.core.types import SECOND_NS, DeviceId
from nodedaemon.drivers.deadline import DeadlineThread
from nodedaemon.drivers.device import ProcessReading, Reading

T = TypeVar("T")
LOST = "lost"
XIDS_KEPT = 64


class Listing(NamedTuple):
    """A GPU or a MIG instance, as NVML lists it."""

    uuid: DeviceId
    gpu_index: int
    name: str


class Nvml:
    """NVML of this node. Handles are looked up by UUID, because a reset may change an index."""

    def __init__(self, library: Any = pynvml, timeout_ns: int = 2 * SECOND_NS) -> None:
        self._nvml = library
        self._thread = DeadlineThread("nvml", timeout_ns)
        self._handles: dict[str, Any] = {}
        self._events: Any = None
        self._watched: dict[int, DeviceId] = {}
        self._xids: dict[DeviceId, list[int]] = {}
        self._call("start NVML", library.nvmlInit)

    @property
    def is_hung(self) -> bool:
        return self._thread.is_hung

    def devices(self) -> tuple[Listing, ...]:
        """GPUs without MIG, and the MIG instances of the others. Lost GPUs are left out."""
        return self._call("list GPUs", self._list)

    def lost_indices(self) -> tuple[int, ...]:
        """GPUs that have fallen off the bus. NVML counts them, but reports nothing else about them."""
        return self._call("list GPUs", self._list_lost)

    def read(self, uuid: DeviceId) -> Reading:
        """A reading. A value that the device does not report is None. A lost device has the fault `lost`."""
        try:
            return self._call(f"read GPU: {uuid}", lambda: self._read(uuid))
        except OperatingError as error:
            if isinstance(error.__cause__, self._nvml.NVMLError_GpuIsLost):
                return Reading(used_bytes=0, total_bytes=0, faults=(LOST,))
            raise

    def process_bytes(self, uuid: DeviceId, pid: int) -> int | None:
        """Device memory of one process, None if NVML does not list it."""
        reading = self.read(uuid)
        return next((process.used_bytes for process in reading.processes if process.pid == pid), None)

    def pop_xids(self, uuid: DeviceId) -> tuple[int, ...]:
        """The Xids of a device since the last call, without waiting. The first call starts to listen on all devices."""
        self._call("read Xids", self._collect_xids)
        return tuple(self._xids.pop(uuid, ()))

    def set_memory_limit(self, uuid: DeviceId, cgroup: str, limit_bytes: int | None) -> bool:
        """Limit the device memory of a cgroup; None lifts the limit. False if the driver has no such limits.

        NVML accepts no MIG instance here: the size of an instance is its limit.
        """
        if uuid.startswith("MIG-"):
            return False

        def work() -> bool:
            limit = limit_bytes if limit_bytes is not None else self._nvml.NVML_DEVICE_MEMORY_LIMIT_MAX
            limits = self._nvml.c_nvmlSetMemoryLimits_v1_t(cgroup.encode(), limit, limit)
            return self._is_supported(lambda: self._nvml.nvmlDeviceSetMemoryLimits_v1(self._handle(uuid), limits))

        return self._call(f"limit memory: {uuid}: {cgroup}", work)

    def has_memory_limits(self, uuid: DeviceId) -> bool:
        """Whether the driver can limit a cgroup's memory on this device."""

        def work() -> bool:
            limits = self._nvml.c_nvmlGetMemoryLimits_v1_t(b"/")
            return self._is_supported(lambda: self._nvml.nvmlDeviceGetMemoryLimits_v1(self._handle(uuid), limits))

        return self._call(f"read memory limits: {uuid}", work)

    def _is_supported(self, call: Callable[[], object]) -> bool:
        try:
            call()
        except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_FunctionNotFound):
            return False
        return True

    def close(self) -> None:
        if not self._thread.is_hung:
            self._call("stop NVML", self._nvml.nvmlShutdown)
        self._thread.close()

    def _call(self, what: str, work: Callable[[], T]) -> T:
        try:
            return self._thread.call(what, work)
        except self._nvml.NVMLError as error:
            raise OperatingError(f"{what}: NVML: {error}; see salus doctor") from error

    def _handle(self, uuid: str) -> Any:
        if uuid not in self._handles:
            self._handles[uuid] = self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
        return self._handles[uuid]

    def _list(self) -> tuple[Listing, ...]:
        found: list[Listing] = []
        for index in range(self._nvml.nvmlDeviceGetCount()):
            # One lost GPU must not hide the others.
            with suppress(self._nvml.NVMLError_GpuIsLost):
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                found.extend(self._listing(each, index) for each in self._instances(handle))
        return tuple(found)

    def _list_lost(self) -> tuple[int, ...]:
        found = []
        for index in range(self._nvml.nvmlDeviceGetCount()):
            try:
                self._nvml.nvmlDeviceGetHandleByIndex(index)
            except self._nvml.NVMLError_GpuIsLost:
                found.append(index)
        return tuple(found)

    def _listing(self, handle: Any, index: int) -> Listing:
        uuid, name = self._nvml.nvmlDeviceGetUUID(handle), self._nvml.nvmlDeviceGetName(handle)
        return Listing(DeviceId(_text(uuid)), index, _text(name))

    def _instances(self, handle: Any) -> list[Any]:
        """The handles of a GPU's MIG instances, or of the GPU itself if it is not split."""
        try:
            is_split = self._nvml.nvmlDeviceGetMigMode(handle)[0]
        except self._nvml.NVMLError_NotSupported:
            is_split = False
        if not is_split:
            return [handle]
        found = []
        for place in range(self._nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            with suppress(self._nvml.NVMLError_NotFound):
                found.append(self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place))
        return found

    def _read(self, uuid: DeviceId) -> Reading:
        handle = self._handle(uuid)
        memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
        processes = self._ask(lambda: self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or []
        rates = self._ask(lambda: self._nvml.nvmlDeviceGetUtilizationRates(handle))
        return Reading(
            used_bytes=memory.used,
            total_bytes=memory.total,
            processes=tuple(
                ProcessReading(row.pid, row.usedGpuMemory) for row in processes if row.usedGpuMemory is not None
            ),
            busy_permille=None if rates is None else int(rates.gpu) * 10,
        )

    def _ask(self, question: Callable[[], T]) -> T | None:
        """The answer, or None if the device has none or we may not read it."""
        try:
            return question()
        except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_NoPermission):
            return None

    def _collect_xids(self) -> None:
        if self._events is None:
            self._listen()
        while True:
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError_Timeout:
                return
            uuid = self._watched.get(_handle_value(event.device))
            if uuid is not None:
                self._xids.setdefault(uuid, []).append(int(event.eventData))
                del self._xids[uuid][:-XIDS_KEPT]

    def _listen(self) -> None:
        events = self._nvml.nvmlEventSetCreate()
        for listing in self._list():
            handle = self._handle(listing.uuid)
            self._watched[_handle_value(handle)] = listing.uuid
            kind = self._nvml.nvmlEventTypeXidCriticalError
            self._ask(partial(self._nvml.nvmlDeviceRegisterEvents, handle, kind, events))
        self._events = events


def _handle_value(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
