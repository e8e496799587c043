"""Process checkpoint on the emulated driver: its states, their order, and the memory that it takes off the device."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import emulator as emulators

CHECKPOINT = """
import ctypes, os, subprocess, sys
from cuda.bindings import driver as d
State = d.CUprocessState
def ok(answer):
    assert answer[0] == d.CUresult.CUDA_SUCCESS, answer
    return answer[1] if len(answer) == 2 else answer[1:]
def used(): return (lambda free, total: total - free)(*ok(d.cuMemGetInfo()))
def state(): return ok(d.cuCheckpointProcessGetState(child.pid))
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
try:
    assert child.stdout.readline() == "ready\\n"
    ok(d.cuInit(0)); ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(ok(d.cuDeviceGet(0))))))
    whole = used()
    assert state() == State.CU_PROCESS_STATE_RUNNING
    # Steps out of order are refused, and nothing changes.
    illegal = d.CUresult.CUDA_ERROR_ILLEGAL_STATE
    assert d.cuCheckpointProcessCheckpoint(child.pid, None)[0] == illegal
    assert d.cuCheckpointProcessRestore(child.pid, None)[0] == illegal
    assert d.cuCheckpointProcessUnlock(child.pid, None)[0] == illegal
    # Running work outlasts the time limit, so the process is unlocked again.
    child.stdin.write("work\\n"); child.stdin.flush(); assert child.stdout.readline() == "working\\n"
    limits = d.CUcheckpointLockArgs(); limits.timeoutMs = 20
    assert d.cuCheckpointProcessLock(child.pid, limits)[0] == d.CUresult.CUDA_ERROR_TIMEOUT
    assert state() == State.CU_PROCESS_STATE_RUNNING
    child.stdin.write("wait\\n"); child.stdin.flush(); assert child.stdout.readline() == "done\\n"
    limits.timeoutMs = 0
    ok(d.cuCheckpointProcessLock(child.pid, limits)); assert state() == State.CU_PROCESS_STATE_LOCKED
    ok(d.cuCheckpointProcessCheckpoint(child.pid, None)); assert state() == State.CU_PROCESS_STATE_CHECKPOINTED
    assert used() == whole - (16 + 64 << 20), "its own memory is off the device"
    assert d.cuCheckpointProcessUnlock(child.pid, None)[0] == illegal
    ok(d.cuCheckpointProcessRestore(child.pid, None)); assert state() == State.CU_PROCESS_STATE_LOCKED
    assert used() == whole
    ok(d.cuCheckpointProcessUnlock(child.pid, None)); assert state() == State.CU_PROCESS_STATE_RUNNING
    # It continues where it was, with its data.
    child.stdin.write("check\\n"); child.stdin.flush(); assert child.stdout.readline() == "7\\n"
    # A process that shares memory with another is refused, whatever a real driver may do.
    child.stdin.write("share\\n"); child.stdin.flush(); fd = int(child.stdout.readline())
    kind = d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    ok(d.cuMemImportFromShareableHandle(os.open(f"/proc/{child.pid}/fd/{fd}", os.O_RDWR), kind))
    ok(d.cuCheckpointProcessLock(child.pid, limits))
    assert d.cuCheckpointProcessCheckpoint(child.pid, None)[0] == d.CUresult.CUDA_ERROR_NOT_SUPPORTED
    assert d.cuCheckpointProcessGetState(1)[0] == d.CUresult.CUDA_ERROR_INVALID_VALUE
finally:
    child.kill(); child.communicate()
"""

CHECKPOINTED = """
import ctypes, sys
from cuda.bindings import driver as d
def ok(answer):
    assert answer[0] == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]
ok(d.cuInit(0)); ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(ok(d.cuDeviceGet(0))))))
block = ok(d.cuMemAlloc(64 << 20)); ok(d.cuMemsetD32(block, 7, 4)); ok(d.cuCtxSynchronize())
image = b"// salus-kernel: k ns=400000000 sm=100 bandwidth=1 effect=none\\n.visible .entry k() { ret; }\\0"
kernel = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(image)), b"k"))
stream = ok(d.cuStreamCreate(1))
def work(): ok(d.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0)); return "working"
def wait(): ok(d.cuStreamSynchronize(stream)); return "done"
def check(): w = (ctypes.c_uint32 * 1)(); ok(d.cuMemcpyDtoH(ctypes.addressof(w), block, 4)); return w[0]
def share():
    props = d.CUmemAllocationProp(); props.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    kind = props.requestedHandleTypes = d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    props.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    return int(ok(d.cuMemExportToShareableHandle(ok(d.cuMemCreate(2 << 20, props, 0)), kind, 0)))
print("ready", flush=True)
for line in sys.stdin: print(globals()[line.strip()](), flush=True)
"""


@pytest.mark.parametrize("version", ["13", "12.9"])
def test_a_process_is_checkpointed_through_every_state(tmp_path: Path, version: str) -> None:
    extra = {"PYTHONPATH": str(emulators.bindings_129())} if version == "12.9" else {}
    code = f"import sys; sys.argv = ['x', {CHECKPOINTED!r}]\n{CHECKPOINT}"
    emulators.make(tmp_path, "tiny-1g").run(code, **extra)
