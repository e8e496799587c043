"""The emulator's shared state survives a death before every one of its stores."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import emulator as emulators
from tests.support.emulator import CONTEXT_BYTES, MIB, Emulator

SURVIVOR_BYTES = 64 * MIB
GRANULE = 2 * MIB


class Prop(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", ctypes.c_int * 2),
        ("meta", ctypes.c_void_p),
        ("flags", ctypes.c_char * 8),
    )


def start(library: ctypes.CDLL) -> None:
    context = ctypes.c_void_p()
    assert library.cuInit(0) == 0
    assert library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert library.cuCtxSetCurrent(context) == 0


def live_a_little(library: ctypes.CDLL) -> None:
    """Every kind of store into the shared file: attach, charge, hold, import, queue, free, leave."""
    start(library)
    word = ctypes.c_uint64
    large, small, handle, imported, address = word(), word(), word(), word(), word()
    stream, fd, prop = ctypes.c_void_p(), ctypes.c_int(), Prop(1, 1, (ctypes.c_int * 2)(1, 0))
    access = (ctypes.c_int * 3)(1, 0, 3)
    assert library.cuMemAlloc_v2(ctypes.byref(large), ctypes.c_size_t(8 * MIB)) == 0
    assert library.cuMemAlloc_v2(ctypes.byref(small), ctypes.c_size_t(1024)) == 0
    assert library.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(GRANULE), ctypes.byref(prop), word(0)) == 0
    assert library.cuMemExportToShareableHandle(ctypes.byref(fd), handle, 1, word(0)) == 0
    assert library.cuMemImportFromShareableHandle(ctypes.byref(imported), ctypes.c_void_p(fd.value), 1) == 0
    assert library.cuMemAddressReserve(ctypes.byref(address), ctypes.c_size_t(GRANULE), word(0), word(0), word(0)) == 0
    assert library.cuMemMap(address, ctypes.c_size_t(GRANULE), word(0), imported, word(0)) == 0
    assert library.cuMemSetAccess(address, ctypes.c_size_t(GRANULE), access, word(1)) == 0
    assert library.cuMemRelease(handle) == 0
    assert library.cuStreamCreate(ctypes.byref(stream), 1) == 0
    assert library.cuMemsetD8Async(address, ctypes.c_ubyte(1), ctypes.c_size_t(4096), stream) == 0
    assert library.cuStreamSynchronize(stream) == 0
    assert library.cuStreamDestroy_v2(stream) == 0
    assert library.cuMemUnmap(address, ctypes.c_size_t(GRANULE)) == 0
    assert library.cuMemRelease(imported) == 0
    assert library.cuMemFree_v2(small) == 0
    assert library.cuMemFree_v2(large) == 0
    assert library.cuDevicePrimaryCtxRelease_v2(0) == 0


def fork_run(work: Callable[[], None]) -> int:
    """Run `work` in a child; its wait status."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


class Survivor:
    """A process with memory of its own that says, when asked, how many bytes of the device are used."""

    def __init__(self, library: ctypes.CDLL) -> None:
        ask, self._asked = os.pipe()
        self._answer, answer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._serve(library, ask, answer)
            finally:
                os._exit(1)
        os.close(ask)
        os.close(answer)

    @staticmethod
    def _serve(library: ctypes.CDLL, ask: int, answer: int) -> None:
        start(library)
        block, free, total = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_size_t()
        assert library.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(SURVIVOR_BYTES)) == 0
        while os.read(ask, 1):
            # Locking makes it the one that finds the owner dead; allocating shows that the state still works.
            extra = ctypes.c_uint64()
            assert library.cuMemAlloc_v2(ctypes.byref(extra), ctypes.c_size_t(4 * MIB)) == 0
            assert library.cuMemFree_v2(extra) == 0
            reads = [library.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) for _ in range(2)]
            assert reads == [0, 0]
            os.write(answer, (total.value - free.value).to_bytes(8, "little"))

    def used_bytes(self) -> int:
        os.write(self._asked, b"?")
        return int.from_bytes(os.read(self._answer, 8), "little")

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def deaths(emulator: Emulator, monkeypatch: pytest.MonkeyPatch, stride: int) -> tuple[int, list[int]]:
    """Die before store 1, 1 + stride, ...; how many points there were, and the used bytes seen after each death."""
    for name, value in emulator.environment().items():
        monkeypatch.setenv(name, value)
    library = ctypes.CDLL(str(emulator.libraries / "libcuda.so.1"))
    survivor = Survivor(library)
    seen: list[int] = []
    try:
        survivor.used_bytes()
        for point in range(1, 5000, stride):
            monkeypatch.setenv("SALUS_EMULATOR_DIE_AT", str(point))
            status = fork_run(lambda: live_a_little(library))
            seen.append(survivor.used_bytes())
            if os.WIFEXITED(status):
                assert os.WEXITSTATUS(status) == 0
                return point, seen
            assert os.WTERMSIG(status) == signal.SIGKILL
    finally:
        survivor.end()
    raise AssertionError("the process never outlived its stores")


def test_a_death_before_any_store_leaves_the_accounting_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emulator = emulators.make(tmp_path, "tiny-1g", "emulator-inject")
    points, seen = deaths(emulator, monkeypatch, stride=1)
    assert points > 60
    assert set(seen) == {CONTEXT_BYTES["tiny-1g"] + SURVIVOR_BYTES}
    assert int(emulator.control("show").split("recoveries ")[1]) > 50


def test_believing_the_counters_after_a_death_would_be_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: without recomputation the same deaths leave wrong figures."""
    emulator = emulators.make(tmp_path, "tiny-1g", "emulator-inject")
    monkeypatch.setenv("SALUS_EMULATOR_TRUST_COUNTERS", "1")
    _, seen = deaths(emulator, monkeypatch, stride=1)
    assert set(seen) != {CONTEXT_BYTES["tiny-1g"] + SURVIVOR_BYTES}


def test_a_death_during_the_recovery_is_recovered_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emulator = emulators.make(tmp_path, "tiny-1g", "emulator-inject")
    for name, value in emulator.environment().items():
        monkeypatch.setenv(name, value)
    library = ctypes.CDLL(str(emulator.libraries / "libcuda.so.1"))
    survivor = Survivor(library)
    try:
        expected = survivor.used_bytes()
        for first in range(18, 50, 3):
            for second in range(1, 5):
                for point in (first, second):
                    monkeypatch.setenv("SALUS_EMULATOR_DIE_AT", str(point))
                    assert os.WTERMSIG(fork_run(lambda: live_a_little(library))) == signal.SIGKILL
                assert survivor.used_bytes() == expected, (first, second)
    finally:
        survivor.end()
