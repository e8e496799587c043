"""Unmodified clients on the emulated driver: cuda-python 12.9 and 13.x, nvidia-ml-py, nvitop, gpustat."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.emulator import MIB, Emulator, bindings_129

TOUR = """
import ctypes, sys
import cuda.bindings
from cuda.bindings import driver as d

def ok(answer):
    assert answer[0] == d.CUresult.CUDA_SUCCESS, answer
    return answer[1] if len(answer) == 2 else answer[1:]

ok(d.cuInit(0))
assert ok(d.cuDeviceGetCount()) == 2
device = ok(d.cuDeviceGet(0))
print(cuda.bindings.__version__, ok(d.cuDeviceGetName(64, device)).split(b"\\0")[0].decode())
context = ok(d.cuDevicePrimaryCtxRetain(device))
ok(d.cuCtxSetCurrent(context))
free, total = ok(d.cuMemGetInfo())
assert total - free == 400 << 20
block = ok(d.cuMemAlloc(8 << 20))
assert ok(d.cuMemGetInfo())[0] == free - (8 << 20)
image = (b"// salus-kernel: add ns=200000 sm=50 bandwidth=10 effect=add\\n"
         b".visible .entry add(.param .u64 p, .param .u32 n, .param .u32 v) { ret; }\\0")
kernel = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(image)), b"add"))
stream, other = ok(d.cuStreamCreateWithPriority(1, -1)), ok(d.cuStreamCreate(1))
start, end = ok(d.cuEventCreate(0)), ok(d.cuEventCreate(0))
words = (ctypes.c_uint32 * 1024)()
ok(d.cuMemsetD32Async(block, 7, 1024, stream))
ok(d.cuEventRecord(start, stream))
types = (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32)
for _ in range(5):
    ok(d.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, ((int(block), 1024, 3), types), 0))
ok(d.cuEventRecord(end, stream))
assert d.cuEventQuery(end)[0] == d.CUresult.CUDA_ERROR_NOT_READY
ok(d.cuStreamWaitEvent(other, end, 0))
ok(d.cuMemcpyDtoHAsync(ctypes.addressof(words), block, 4096, other))
ok(d.cuStreamSynchronize(other))
assert set(words) == {22}, words[:3]
assert 0.9 < ok(d.cuEventElapsedTime(start, end)) < 1000
pooled = ok(d.cuMemAllocAsync(4 << 20, stream))
ok(d.cuMemFreeAsync(pooled, stream))
ok(d.cuCtxSynchronize())
assert d.cuMemAlloc(100 << 30)[0] == d.CUresult.CUDA_ERROR_OUT_OF_MEMORY
assert d.cuGraphCreate(0)[0] == d.CUresult.CUDA_ERROR_NOT_SUPPORTED
ok(d.cuMemFree(block))
assert ok(d.cuMemGetInfo())[0] == free
"""

HOLDER = """
import sys
from cuda.bindings import driver as d
d.cuInit(0); d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(d.cuDeviceGet(0)[1])[1]); d.cuMemAlloc(100 << 20)
print("holding", flush=True); sys.stdin.read()
"""


@pytest.fixture
def holder(emulator: Emulator) -> Iterator[int]:
    """A process that holds 100 MiB on device 0 until the test ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER], env=emulator.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"holding\n"
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def test_cuda_python_13_runs_unmodified(emulator: Emulator) -> None:
    assert emulator.run(TOUR).stdout.split()[0].startswith("13.")
    assert emulator.used_bytes() == 0


def test_cuda_python_12_9_runs_unmodified(emulator: Emulator) -> None:
    assert emulator.run(TOUR, PYTHONPATH=str(bindings_129())).stdout.split()[0].startswith("12.9.")


def test_nvidia_ml_py_lists_devices_memory_and_processes(emulator: Emulator, holder: int) -> None:
    code = f"""
import pynvml as n
n.nvmlInit()
handle = n.nvmlDeviceGetHandleByIndex(0)
assert n.nvmlDeviceGetCount() == 2
assert n.nvmlDeviceGetMemoryInfo(handle).used == {500 * MIB}
rows = [(p.pid, p.usedGpuMemory) for p in n.nvmlDeviceGetComputeRunningProcesses(handle)]
assert rows == [({holder}, {500 * MIB})], rows
assert n.nvmlDeviceGetComputeRunningProcesses(n.nvmlDeviceGetHandleByIndex(1)) == []
assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(handle))) == 0
assert n.nvmlDeviceGetMigMode(handle) == [0, 0]
import re, pathlib
names = set(re.findall(r'_nvmlGetFunctionPointer\\("(nvml\\w+)"\\)', pathlib.Path(n.__file__).read_text()))
missing = [name for name in names if not hasattr(n.nvmlLib, name)]
assert len(names) >= 408 and not missing, missing
"""
    emulator.run(code)


def test_nvml_limits_the_memory_of_a_cgroup(emulator: Emulator) -> None:
    code = """
import pathlib, pynvml as n
from cuda.bindings import driver as d
group = next(l[3:] for l in pathlib.Path("/proc/self/cgroup").read_text().splitlines() if l.startswith("0::"))
n.nvmlInit(); handle = n.nvmlDeviceGetHandleByIndex(0)
n.nvmlDeviceSetMemoryLimits_v1(handle, n.c_nvmlSetMemoryLimits_v1_t(group.encode(), 1 << 30, 1 << 30))
d.cuInit(0); d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(d.cuDeviceGet(0)[1])[1])
assert d.cuMemAlloc(700 << 20)[0] == d.CUresult.CUDA_ERROR_OUT_OF_MEMORY
assert d.cuMemAlloc(600 << 20)[0] == d.CUresult.CUDA_SUCCESS
limits = n.c_nvmlGetMemoryLimits_v1_t(group.encode())
n.nvmlDeviceGetMemoryLimits_v1(handle, limits)
assert (limits.hardLimit, limits.currentUsed) == (1 << 30, 1000 << 20)
"""
    if "0::" not in Path("/proc/self/cgroup").read_text():
        pytest.skip("limits need a cgroup v2 path, and this machine mounts no cgroup v2")
    emulator.run(code)


@pytest.mark.parametrize("command", [["nvitop", "--once"], ["gpustat", "--no-color", "-cpu"]])
def test_monitors_show_our_devices_and_processes(emulator: Emulator, holder: int, command: list[str]) -> None:
    program = Path(sys.executable).parent / command[0]
    answer = subprocess.run(
        [program, *command[1:]], env=emulator.environment(COLUMNS="120"), capture_output=True, text=True, timeout=60
    )
    assert answer.returncode == 0, answer.stderr
    assert "A100" in answer.stdout
    assert "T4" in answer.stdout
    assert str(holder) in answer.stdout
    assert "500" in answer.stdout


def test_a_new_client_reads_the_past_utilisation(emulator: Emulator) -> None:
    code = """
import subprocess, sys
from cuda.bindings import driver as d
READ = '''
import pynvml as n
n.nvmlInit()
for index in range(2): print(n.nvmlDeviceGetUtilizationRates(n.nvmlDeviceGetHandleByIndex(index)).gpu)
'''
d.cuInit(0); d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(d.cuDeviceGet(0)[1])[1])
image = b"// salus-kernel: k ns=1000000000 sm=100 bandwidth=1 effect=none\\n.visible .entry k() { ret; }\\0"
kernel = d.cuModuleGetFunction(d.cuModuleLoadData(image)[1], b"k")[1]
first = d.cuEventCreate(2)[1]
for number in range(3):
    d.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
    if number == 0: d.cuEventRecord(first, 0)
# The first of the three kernels is over, so the device was busy for the whole last second.
d.cuEventSynchronize(first)
busy, idle = map(int, subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True).stdout.split())
assert busy > 50 and idle == 0, (busy, idle)
"""
    emulator.run(code)


def test_a_device_hangs_and_slows_down_on_demand(emulator: Emulator) -> None:
    code = """
import os, subprocess
from cuda.bindings import driver as d
def ok(answer):
    assert answer[0] == d.CUresult.CUDA_SUCCESS, answer
    return answer[1] if len(answer) == 2 else answer[1:]
def control(*words): subprocess.run([os.environ["CONTROL"], *words], check=True)
ok(d.cuInit(0)); ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(ok(d.cuDeviceGet(0))))))
image = b"// salus-kernel: k ns=5000000 sm=100 bandwidth=1 effect=none\\n.visible .entry k() { ret; }\\0"
kernel = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(image)), b"k"))
stream = ok(d.cuStreamCreate(1))
def run():
    events = [ok(d.cuEventCreate(0)), ok(d.cuEventCreate(0))]
    ok(d.cuEventRecord(events[0], stream))
    ok(d.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0))
    ok(d.cuEventRecord(events[1], stream))
    return events
def milliseconds(events):
    ok(d.cuStreamSynchronize(stream))
    return ok(d.cuEventElapsedTime(*events))
# Measure with the device's clock, by which the model is exact.
full = milliseconds(run())
control("slow", "0", "250")
assert 3.9 < milliseconds(run()) / full < 4.1
control("clear", "0"); control("hang", "0")
events = run()
for _ in range(2000): assert d.cuStreamQuery(stream)[0] == d.CUresult.CUDA_ERROR_NOT_READY
control("clear", "0")
assert milliseconds(events) >= full * 0.99
"""
    emulator.run(code, CONTROL=str(emulator.libraries / "salus-emulator"))


def test_a_host_dereference_of_device_memory_faults(emulator: Emulator) -> None:
    code = """
import ctypes
from cuda.bindings import driver as d
d.cuInit(0); d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(d.cuDeviceGet(0)[1])[1])
ctypes.string_at(int(d.cuMemAlloc(4096)[1]), 1)
"""
    assert emulator.run(code, check=False).returncode == -11


@pytest.mark.parametrize(("visible", "expected"), [("1", ["T4"]), ("1,0", ["T4", "A100"]), ("", []), ("7,0", [])])
def test_visible_devices_are_numbered_in_the_order_of_the_variable(
    emulator: Emulator, visible: str, expected: list[str]
) -> None:
    code = """
from cuda.bindings import driver as d
d.cuInit(0)
for i in range(d.cuDeviceGetCount()[1]):
    print(d.cuDeviceGetName(64, d.cuDeviceGet(i)[1])[1].split(b"\\0")[0].decode())
"""
    lines = emulator.run(code, CUDA_VISIBLE_DEVICES=visible).stdout.splitlines()
    assert len(lines) == len(expected)
    assert all(name in line for name, line in zip(expected, lines, strict=True))
