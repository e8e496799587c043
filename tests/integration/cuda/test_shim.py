"""libsalus in place of the CUDA driver: it exports every name, and forwards unchanged what it does not wrap."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.cuda_node import LIBSALUS, CudaNode, build_libsalus
from tests.support.emulator import ROOT, Emulator

LIBRARY = LIBSALUS / "cuda/libcuda.so.1"
START = """
import ctypes, os
def library(): return ctypes.CDLL("libcuda.so.1")
def get(lib, name, version, flags=0, symbol="cuGetProcAddress_v2"):
    found = ctypes.c_void_p()
    extra = [None] if symbol.endswith("v2") else []
    getattr(lib, symbol)(name.encode(), ctypes.byref(found), version, ctypes.c_uint64(flags), *extra)
    return found.value
def address(lib, name): return ctypes.cast(getattr(lib, name), ctypes.c_void_p).value
lib = library()
"""


@pytest.fixture(autouse=True)
def _built() -> None:
    build_libsalus()


def exported(library: Path) -> set[str]:
    table = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    return {line.split()[-1] for line in table.stdout.splitlines()}


def test_every_name_of_the_driver_is_exported_and_nothing_else(emulator: Emulator) -> None:
    names = {line.split("\t")[3] for line in (ROOT / "emulator/driver_names.tsv").read_text().splitlines()}
    ours = exported(LIBRARY)
    assert names <= ours
    assert {name for name in ours if not name.startswith(("cu", "salus_"))} == set()
    assert names <= exported(emulator.libraries / "libcuda.so.1")


def test_every_way_to_look_up_a_wrapped_name_finds_our_function(emulator: Emulator) -> None:
    code = f"""{START}
for symbol in ("cuGetProcAddress", "cuGetProcAddress_v2"):
    assert get(lib, "cuLaunchKernel", 12000, 0, symbol) == address(lib, "cuLaunchKernel")
    assert get(lib, "cuMemAlloc", 12000, 0, symbol) == address(lib, "cuMemAlloc_v2")
    assert get(lib, "cuLaunchKernel", 12000, 2, symbol) == address(lib, "cuLaunchKernel_ptsz")
    assert get(lib, "cuMemFreeAsync", 12000, 2, symbol) == address(lib, "cuMemFreeAsync_ptsz")
    # The pointer that it returns for itself, in both versions.
    assert get(lib, "cuGetProcAddress", 12000, 0, symbol) == address(lib, "cuGetProcAddress_v2")
    assert get(lib, "cuGetProcAddress", 11030, 0, symbol) == address(lib, "cuGetProcAddress")
    # An older form than the one we wrap, a name we do not wrap, and an unknown name: the driver's own answers.
    assert get(lib, "cuMemAlloc", 2000, 0, symbol) != address(lib, "cuMemAlloc_v2")
    assert get(lib, "cuCtxGetCurrent", 12000, 0, symbol) not in (None, address(lib, "cuCtxGetCurrent"))
    assert get(lib, "cuNoSuchThing", 12000, 0, symbol) is None
# Forwarded with all arguments, also those on the stack, and with the driver's own result codes.
count = ctypes.c_int()
assert lib.cuDeviceGetCount(ctypes.byref(count)) == 3 and lib.cuInit(0) == 0
assert lib.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value == 2
assert lib.cuGraphCreate(None, 0) == 801
assert lib.cuGetExportTable(ctypes.byref(ctypes.c_void_p()), b"0" * 16) == 500
"""
    emulator.run(code, LD_PRELOAD=str(LIBRARY))


@pytest.mark.parametrize("extra", [{"SALUS_DISABLE": "1"}, {"CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM": "1"}, {}])
def test_a_program_without_a_session_runs_as_without_salus(emulator: Emulator, extra: dict[str, str]) -> None:
    code = "import runpy, sys; sys.argv = ['x', '--iterations', '20', '--cached']; "
    code += f"runpy.run_path({str(ROOT / 'examples/cuda_loop.py')!r}, run_name='__main__')"
    said = emulator.run(code, LD_PRELOAD=str(LIBRARY), SALUS_SOCKET="/nonexistent/socket", **extra)
    assert '"attached": false' in said.stdout
    assert '"wrong": 0' in said.stdout
    assert emulator.used_bytes() == 0


def test_a_missing_driver_is_reported_and_breaks_nothing(emulator: Emulator) -> None:
    code = START + "assert lib.cuInit(0) == 500"
    said = emulator.run(code, LD_PRELOAD=str(LIBRARY), LD_LIBRARY_PATH="/nonexistent")
    assert "salus: load driver" in said.stderr
    # A program that never calls the driver gets no message, because there is no constructor.
    assert emulator.run("print(1)", LD_PRELOAD=str(LIBRARY), LD_LIBRARY_PATH="/nonexistent").stderr == ""


INSIDE = """
import ctypes, sys
sys.path.insert(0, "examples")
import cuda_loop
from cuda.bindings import driver as d
loop = cuda_loop.Loop(cuda_loop.parse([]))
lib, MIB = ctypes.CDLL(None), 1 << 20
ok = cuda_loop.ok
loop.salus.boundary(loop.allocator)
free, total = ok(d.cuMemGetInfo())
assert free < 200 * MIB < total, "free memory is what the session may allocate"
in_lane = int(ok(d.cuMemAlloc(4 * MIB)))
assert lib.salus_is_lane(ctypes.c_void_p(in_lane)) == 1
start, size = ok(d.cuMemGetAddressRange(in_lane + 5))
assert (int(start), size) == (in_lane, 4 * MIB)
lib.salus_persist_begin()
own = int(ok(d.cuMemAlloc(4 * MIB)))
lib.salus_persist_end()
assert lib.salus_is_lane(ctypes.c_void_p(own)) == 0
for address in (in_lane, own):
    assert d.cuIpcGetMemHandle(address)[0] == d.CUresult.CUDA_ERROR_NOT_SUPPORTED
# A pool's block and an asynchronous free; a stream's order is kept.
stream = ok(d.cuStreamCreate(1))
pooled = ok(d.cuMemAllocAsync(4 * MIB, stream))
ok(d.cuMemsetD8Async(pooled, 1, 4 * MIB, stream))
ok(d.cuMemFreeAsync(pooled, stream))
# The lane fills up, then the session's own limit, then allocations fail. Freed memory can be allocated again.
taken = []
while True:
    code, address = d.cuMemAlloc(16 * MIB)
    if code: break
    taken.append(int(address))
assert code == d.CUresult.CUDA_ERROR_OUT_OF_MEMORY and len(taken) < 12
kinds = [lib.salus_is_lane(ctypes.c_void_p(address)) for address in taken]
assert kinds == sorted(kinds, reverse=True) and set(kinds) == {0, 1}, kinds
ok(d.cuMemFree(taken.pop())); taken.append(int(ok(d.cuMemAlloc(16 * MIB))))
for address in (*taken, in_lane, own): ok(d.cuMemFree(address))
launches = lib.salus_cuda_launch_count()
loop.iterate(1)
assert lib.salus_cuda_launch_count() - launches == 3
loop.close()
print('{"ok": true}')
"""


def test_a_session_allocates_in_its_lane_then_up_to_its_limit_then_not_at_all() -> None:
    # The device has no memory beyond the limits, so the daemon cannot raise them.
    with CudaNode("tiny-1g=224", "MaxLanes=1") as node:
        job = node.job("-c", INSIDE, program=())
        assert node.report(job) == {"ok": True}
