"""Short programs on the emulated driver. Together they reach every store into its shared file.

A test runs each one in a child that dies before its first store, its second, and so on, until one run reaches its end.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.support.emulator import MIB, ROOT

GRANULE = 2 * MIB
SURVIVOR_BYTES = 64 * MIB
IMAGE = (
    b"// salus-kernel: k ns=%d sm=100 bandwidth=10 effect=%s\n"
    b".visible .entry k(.param .u64 p, .param .u32 n, .param .u32 v) { ret; }\0"
)
NOT_READY = 600
Word = ctypes.c_uint64


class Prop(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", ctypes.c_int * 2),
        ("meta", ctypes.c_void_p),
        ("flags", ctypes.c_char * 8),
    )


@dataclass(frozen=True)
class Libraries:
    driver: ctypes.CDLL
    nvml: ctypes.CDLL


def start(driver: ctypes.CDLL, device: int = 0) -> None:
    context = ctypes.c_void_p()
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert driver.cuCtxSetCurrent(context) == 0


def launch(driver: ctypes.CDLL, stream: ctypes.c_void_p, ns: int, effect: bytes = b"none") -> None:
    """Launch a kernel of that length. With the effect `fill`, it writes to unmapped memory."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    values = (Word((1 << 60) | (1 << 55) | 4096), ctypes.c_uint32(4), ctypes.c_uint32(1))
    places = (ctypes.c_void_p * 3)(*[ctypes.addressof(value) for value in values])
    assert driver.cuModuleLoadData(ctypes.byref(module), IMAGE % (ns, effect)) == 0
    assert driver.cuModuleGetFunction(ctypes.byref(function), module, b"k") == 0
    assert driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, places, None) == 0


def share(driver: ctypes.CDLL) -> tuple[Word, Word, Word]:
    """Two handles to the same memory, and an address at which it is mapped."""
    handle, imported, address = Word(), Word(), Word()
    fd, prop, access = ctypes.c_int(), Prop(1, 1, (ctypes.c_int * 2)(1, 0)), (ctypes.c_int * 3)(1, 0, 3)
    size = ctypes.c_size_t(GRANULE)
    assert driver.cuMemCreate(ctypes.byref(handle), size, ctypes.byref(prop), Word(0)) == 0
    assert driver.cuMemExportToShareableHandle(ctypes.byref(fd), handle, 1, Word(0)) == 0
    assert driver.cuMemImportFromShareableHandle(ctypes.byref(imported), ctypes.c_void_p(fd.value), 1) == 0
    os.close(fd.value)
    assert driver.cuMemAddressReserve(ctypes.byref(address), size, Word(0), Word(0), Word(0)) == 0
    assert driver.cuMemMap(address, size, Word(0), imported, Word(0)) == 0
    assert driver.cuMemSetAccess(address, size, access, Word(1)) == 0
    return handle, imported, address


def use_memory(at: Libraries) -> None:
    driver = at.driver
    start(driver)
    large, small, stream = Word(), Word(), ctypes.c_void_p()
    assert driver.cuMemAlloc_v2(ctypes.byref(large), ctypes.c_size_t(8 * MIB)) == 0
    assert driver.cuMemAlloc_v2(ctypes.byref(small), ctypes.c_size_t(1024)) == 0
    handle, imported, address = share(driver)
    assert driver.cuMemRelease(handle) == 0
    assert driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
    assert driver.cuMemsetD8Async(address, ctypes.c_ubyte(1), ctypes.c_size_t(4096), stream) == 0
    assert driver.cuStreamSynchronize(stream) == 0
    assert driver.cuStreamDestroy_v2(stream) == 0
    assert driver.cuMemUnmap(address, ctypes.c_size_t(GRANULE)) == 0
    assert driver.cuMemRelease(imported) == 0
    assert driver.cuMemFree_v2(small) == 0
    assert driver.cuMemFree_v2(large) == 0
    assert driver.cuDevicePrimaryCtxRelease_v2(0) == 0


def compute(at: Libraries) -> None:
    """Work at the same time as the survivor, so that time slices alternate; then work that faults."""
    driver = at.driver
    start(driver)
    streams = [ctypes.c_void_p(), ctypes.c_void_p()]
    for stream in streams:
        assert driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
        launch(driver, stream, 100_000)
    assert driver.cuCtxSynchronize() == 0
    launch(driver, streams[0], 1000, b"fill")
    assert driver.cuCtxSynchronize() == 700


class OpenStreams:
    """Opens more streams than any run before, so that the table of rings grows."""

    def __init__(self) -> None:
        self.count = 4

    def __call__(self, at: Libraries) -> None:
        start(at.driver)
        for _ in range(self.count):
            assert at.driver.cuStreamCreate(ctypes.byref(ctypes.c_void_p()), 1) == 0

    def more(self) -> None:
        self.count += 1


def be_checkpointed(at: Libraries) -> None:
    start(at.driver)
    block = Word()
    assert at.driver.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(8 * MIB)) == 0
    for step in ("Lock", "Checkpoint", "Restore", "Unlock"):
        assert getattr(at.driver, f"cuCheckpointProcess{step}")(os.getpid(), None) == 0, step


def be_refused(at: Libraries) -> None:
    """After `salus-emulator oom 0 1`."""
    at.driver.cuInit(0)
    context, block = ctypes.c_void_p(), Word()
    at.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    at.driver.cuCtxSetCurrent(context)
    at.driver.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(8 * MIB))


def limit_memory(at: Libraries) -> None:
    class Limits(ctypes.Structure):
        _fields_ = (("name", ctypes.c_char_p), ("soft", Word), ("hard", Word))

    handle = ctypes.c_void_p()
    assert at.nvml.nvmlInit_v2() == 0
    assert at.nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
    for hard in (1 << 30, (1 << 64) - 1):
        assert at.nvml.nvmlDeviceSetMemoryLimits_v1(handle, ctypes.byref(Limits(b"/salus", hard, hard))) == 0


def only_attach(at: Libraries) -> None:
    assert at.driver.cuInit(0) == 0


def hold_everything(at: Libraries) -> None:
    """Hold all that a process can hold when it is killed: context, blocks, shared memory, streams, a time slice."""
    start(at.driver)
    stream, block = ctypes.c_void_p(), Word()
    assert at.driver.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(8 * MIB)) == 0
    share(at.driver)
    # It is alone on the second device, so it owns the time slice there when it dies.
    start(at.driver, 1)
    assert at.driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
    launch(at.driver, stream, 10_000_000_000)
    assert at.driver.cuStreamQuery(stream) == NOT_READY
    os.kill(os.getpid(), signal.SIGKILL)


def fork_run(work: Callable[[], None]) -> int:
    """Run `work` in a child and return its wait status."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def run_forever(driver: ctypes.CDLL) -> int:
    """Start a process whose kernel never ends, so that other work has to take turns with it. Returns its pid."""
    ready, done = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            start(driver)
            stream = ctypes.c_void_p()
            assert driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
            launch(driver, stream, 3_600_000_000_000)
            os.write(done, b"!")
            signal.pause()
        finally:
            os._exit(1)
    os.close(done)
    assert os.read(ready, 1) == b"!"
    os.close(ready)
    return pid


class Survivor:
    """A process with memory of its own that reports on request how many bytes of the device are used."""

    def __init__(self, driver: ctypes.CDLL) -> None:
        ask, self._asked = os.pipe()
        self._answer, answer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._asked)
                os.close(self._answer)
                self._serve(driver, ask, answer)
            finally:
                os._exit(1)
        os.close(ask)
        os.close(answer)

    @staticmethod
    def _serve(driver: ctypes.CDLL, ask: int, answer: int) -> None:
        start(driver)
        block, free, total = Word(), ctypes.c_size_t(), ctypes.c_size_t()
        assert driver.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(SURVIVOR_BYTES)) == 0
        while os.read(ask, 1):
            # Taking the lock detects that its owner died. Allocating shows that the state still works.
            extra = Word()
            assert driver.cuMemAlloc_v2(ctypes.byref(extra), ctypes.c_size_t(4 * MIB)) == 0
            assert driver.cuMemFree_v2(extra) == 0
            reads = [driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) for _ in range(2)]
            assert reads == [0, 0]
            os.write(answer, (total.value - free.value).to_bytes(8, "little"))

    def used_bytes(self) -> int:
        os.write(self._asked, b"?")
        return int.from_bytes(os.read(self._answer, 8), "little")

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._asked)
        os.close(self._answer)


@dataclass(frozen=True)
class Store:
    """A store into the shared file, in the source."""

    file: str
    function: str
    text: str
    lines: range

    def is_at(self, place: str) -> bool:
        """Whether FILE:LINE, as the injecting build records it, is this store."""
        file, line = place.split(":")
        return file == self.file and int(line) in self.lines


def stores() -> Iterator[Store]:
    """Every store into the shared file."""
    for path in sorted((ROOT / "emulator").glob("*.c")):
        text = path.read_text()
        for found in re.finditer(r"\b(PUT\(|emu_inject\(\);)", text):
            end = text.index(";", found.start())
            first, last = (text.count("\n", 0, place) + 1 for place in (found.start(), end))
            function = re.findall(r"^\w[^;{}]*?\b(\w+)\([^;{}]*\)\n\{", text[: found.start()], re.MULTILINE)[-1]
            yield Store(path.name, function, " ".join(text[found.start() : end].split()), range(first, last + 1))
