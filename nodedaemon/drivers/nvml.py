"""Readings of GPUs through NVML (`pynvml`): memory, processes, utilisation, Xid events, MIG, limits by cgroup.

Every call is made in one thread with a deadline, because NVML blocks when a GPU hangs. NVML's errors come out as
`OperatingError`; a GPU that is lost is a reading with the fault `lost`, since the daemon must go on without it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import pynvml

from nodedaemon.core.errors import OperatingError
from nodedaemon.core.types import DeviceId
from nodedaemon.drivers.deadline import SECOND_NS, DeadlineThread
from nodedaemon.drivers.device import ProcessReading, Reading

T = TypeVar("T")
LOST = "lost"
XIDS_KEPT = 64


@dataclass(frozen=True, slots=True)
class Listing:
    """A GPU, or an instance of one, as NVML lists it."""

    uuid: DeviceId
    index: int
    name: str
    total_bytes: int
    parent_uuid: DeviceId | None = None


class Nvml:
    """NVML of this node. Handles are looked up by UUID, which outlives indices and resets."""

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
        """Whole GPUs, and in place of one that is split its MIG instances; those that are lost are left out."""
        return self._call("list GPUs", self._list)

    def lost_indices(self) -> tuple[int, ...]:
        """GPUs that have fallen off the bus: NVML counts them and knows nothing else of them."""
        return self._call("list GPUs", self._list_lost)

    def read(self, uuid: DeviceId) -> Reading:
        """A reading. What the device does not tell is None; a lost device reads as all of it used."""
        try:
            return self._call(f"read GPU: {uuid}", lambda: self._read(uuid))
        except OperatingError as error:
            if _is_lost(self._nvml, error.__cause__):
                return Reading(used_bytes=0, total_bytes=0, faults=(LOST,))
            raise

    def process_bytes(self, uuid: DeviceId, pid: int) -> int | None:
        """Device memory of one process, None if NVML does not list it."""
        reading = self.read(uuid)
        return next((process.used_bytes for process in reading.processes if process.pid == pid), None)

    def take_xids(self, uuid: DeviceId) -> tuple[int, ...]:
        """Xids of a device since the last call, without waiting; the first call for any device starts to listen."""
        self._call("take Xids", self._collect_xids)
        return tuple(self._xids.pop(uuid, ()))

    def set_memory_limit(self, uuid: DeviceId, cgroup: str, limit_bytes: int | None) -> bool:
        """Limit the device memory of a cgroup, None lifts it; False where the driver has no such limits.

        NVML takes no instance of a split GPU here: its size is its fence.
        """
        if uuid.startswith("MIG-"):
            return False

        def work() -> bool:
            whole = limit_bytes if limit_bytes is not None else self._nvml.NVML_DEVICE_MEMORY_LIMIT_MAX
            limits = self._nvml.c_nvmlSetMemoryLimits_v1_t(cgroup.encode(), whole, whole)
            try:
                self._nvml.nvmlDeviceSetMemoryLimits_v1(self._handle(uuid), limits)
            except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_FunctionNotFound):
                return False
            return True

        return self._call(f"limit memory: {uuid}: {cgroup}", work)

    def has_memory_limits(self, uuid: DeviceId) -> bool:
        """Whether the driver can limit a cgroup's memory on this device."""

        def work() -> bool:
            try:
                self._nvml.nvmlDeviceGetMemoryLimits_v1(self._handle(uuid), self._nvml.c_nvmlGetMemoryLimits_v1_t(b"/"))
            except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_FunctionNotFound):
                return False
            return True

        return self._call(f"read memory limits: {uuid}", work)

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
                whole = self._listing(handle, index, None)
                found.extend(self._instances(handle, whole) if self._is_split(handle) else (whole,))
        return tuple(found)

    def _list_lost(self) -> tuple[int, ...]:
        found = []
        for index in range(self._nvml.nvmlDeviceGetCount()):
            try:
                self._nvml.nvmlDeviceGetHandleByIndex(index)
            except self._nvml.NVMLError_GpuIsLost:
                found.append(index)
        return tuple(found)

    def _listing(self, handle: Any, index: int, parent: DeviceId | None) -> Listing:
        return Listing(
            DeviceId(_text(self._nvml.nvmlDeviceGetUUID(handle))),
            index,
            _text(self._nvml.nvmlDeviceGetName(handle)),
            self._nvml.nvmlDeviceGetMemoryInfo(handle).total,
            parent,
        )

    def _is_split(self, handle: Any) -> bool:
        try:
            return bool(self._nvml.nvmlDeviceGetMigMode(handle)[0])
        except self._nvml.NVMLError_NotSupported:
            return False

    def _instances(self, handle: Any, whole: Listing) -> tuple[Listing, ...]:
        found = []
        for place in range(self._nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                instance = self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
            except self._nvml.NVMLError_NotFound:
                continue
            found.append(self._listing(instance, whole.index, whole.uuid))
        return tuple(found)

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
            temperature_celsius=self._ask(
                lambda: int(self._nvml.nvmlDeviceGetTemperature(handle, self._nvml.NVML_TEMPERATURE_GPU))
            ),
            power_milliwatts=self._ask(lambda: int(self._nvml.nvmlDeviceGetPowerUsage(handle))),
        )

    def _ask(self, question: Callable[[], T]) -> T | None:
        """An answer that some devices do not have."""
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


def _is_lost(library: Any, error: BaseException | None) -> bool:
    return isinstance(error, library.NVMLError_GpuIsLost)
