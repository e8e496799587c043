"""The drivers for CUDA and NVML on the emulator, in a process of their own, as in salusd."""

from __future__ import annotations

import pytest

from nodedaemon.core.types import DeviceId
from nodedaemon.drivers.cuda import select_devices
from tests.support.emulator import Emulator

START = """
import os, subprocess, sys, time
from pathlib import Path
from nodedaemon.core.errors import OperatingError, PeerError
from nodedaemon.drivers.cuda import CudaDevice, discover
from nodedaemon.drivers.nvml import Nvml
MIB = 1 << 20
nvml = Nvml(timeout_ns=2_000_000_000)
def control(*words): subprocess.run([os.environ["CONTROL"], *words], check=True, stdout=subprocess.DEVNULL)
def until(claim):
    deadline = time.monotonic() + 10
    while not claim():
        assert time.monotonic() < deadline
"""

# A job that imports the lane from an inherited descriptor, writes to it, and keeps it mapped until it reads a line.
JOB = """
import ctypes, sys
from cuda.bindings import driver as d
def ok(answer):
    assert answer[0] == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]
fd, size, word = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
ok(d.cuInit(0)); ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(ok(d.cuDeviceGet(0))))))
kind = d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
handle = ok(d.cuMemImportFromShareableHandle(fd, kind))
import os; os.close(fd)
address = ok(d.cuMemAddressReserve(size, 0, 0, 0))
ok(d.cuMemMap(address, size, 0, handle, 0)); ok(d.cuMemRelease(handle))
access = d.CUmemAccessDesc(); access.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
access.flags = d.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
ok(d.cuMemSetAccess(address, size, [access], 1))
seen = (ctypes.c_uint32 * 4)(); ok(d.cuMemcpyDtoH(ctypes.addressof(seen), address, 16))
ok(d.cuMemsetD32(address, word, 4)); ok(d.cuCtxSynchronize())
print(seen[0], flush=True); sys.stdin.readline()
ok(d.cuMemUnmap(address, size)); print("gone", flush=True); sys.stdin.read()
"""

LANES = f"""{START}
JOB = {JOB!r}
device, other = discover(nvml)
assert (device.kind, other.index, device.granularity_bytes) == ("cuda", 1, 2 * MIB)
assert device.context_bytes == 400 * MIB and device.usable_bytes == device.total_bytes - 400 * MIB
def start(memory, word):
    fd = os.dup(memory.fd); os.set_inheritable(fd, True)
    job = subprocess.Popen([sys.executable, "-c", JOB, str(fd), str(memory.size_bytes), str(word)], pass_fds=[fd],
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    os.close(fd)
    return job, int(job.stdout.readline())
size = 8192 * MIB
lane = device.open_lane(size)
used = lambda: nvml.read(device.uuid).used_bytes
assert used() == 400 * MIB + size
job, seen = start(lane, 77)
try:
    assert seen == 0 and used() == 800 * MIB + size, "counted once"
    assert [p.pid for p in device.read(()).processes] == [os.getpid(), job.pid]
    assert device.find_holders(lane, [job.pid, 1]) == {{job.pid}}
    assert device.wipe_lane(lane) == size and device.held_bytes(lane) == size, "the job still maps it"
    # Others may allocate meanwhile. Free memory then rises by less, and still shows that the lane is gone.
    second = device.open_lane(64 * MIB); newcomer, _ = start(second, 78)
    assert device.wipe_lane(lane) == size
    job.stdin.write("go\\n"); job.stdin.flush(); assert job.stdout.readline() == "gone\\n"
    until(lambda: device.wipe_lane(lane) == 0)
    newcomer.kill(); newcomer.communicate(); device.close_lane(second)
    assert device.held_bytes(lane) == 0 and not device.find_holders(lane, [job.pid])
    device.close_lane(lane)
finally:
    job.kill(); job.communicate()
until(lambda: used() == 400 * MIB)
# The next domain gets zeroes.
lane = device.open_lane(64 * MIB)
job, seen = start(lane, 5)
job.kill(); job.communicate()
assert seen == 0
device.close_lane(lane)
try: device.open_lane(64 << 30)
except OperatingError as error: assert "OUT_OF_MEMORY" in str(error)
else: raise AssertionError
device.close(); other.close(); nvml.close()
"""


@pytest.fixture
def control(emulator: Emulator) -> str:
    return str(emulator.libraries / "salus-emulator")


def test_lanes_are_counted_once_and_free_memory_rises_before_they_are_released(
    emulator: Emulator, control: str
) -> None:
    emulator.run(LANES, CONTROL=control)
    assert emulator.used_bytes() == 0


def test_a_lane_that_a_session_kept_is_adopted_after_a_restart(emulator: Emulator, control: str) -> None:
    code = f"""{START}
# The first daemon is a child; the session is this process, which keeps the mapping alive through a handle of its own.
from multiprocessing.connection import Connection
import multiprocessing, socket
from cuda.bindings import driver as d
def daemon(channel):
    nvml = Nvml(); device = discover(nvml, "0")[0]; lane = device.open_lane(64 * MIB)
    socket.send_fds(channel, [lane.identity.encode()], [lane.fd]); channel.recv(1); os._exit(0)
ours, theirs = socket.socketpair()
pid = os.fork()
if pid == 0: daemon(theirs)
identity, fds, _, _ = socket.recv_fds(ours, 200, 1)
d.cuInit(0)
kind = d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
handle = d.cuMemImportFromShareableHandle(fds[0], kind)[1]
ours.send(b"x"); os.waitpid(pid, 0)
nvml = Nvml(); device = discover(nvml, "0")[0]
assert nvml.read(device.uuid).used_bytes == 464 * MIB
lane = device.adopt_lane(fds[0], identity.decode(), 64 * MIB)
assert lane.identity == identity.decode() and device.held_bytes(lane) == 64 * MIB
d.cuMemRelease(handle)
stranger = os.memfd_create("x")
try: device.adopt_lane(stranger, "file:1:2", 64 * MIB)
except PeerError: pass
else: raise AssertionError
assert device.wipe_lane(lane) == 0 and nvml.read(device.uuid).used_bytes == 400 * MIB
"""
    code = code.replace("nvml = Nvml(timeout_ns=2_000_000_000)\n", "", 1)
    emulator.run(code, CONTROL=control)


def test_faults_are_reported_and_a_hang_costs_one_time_out(emulator: Emulator, control: str) -> None:
    code = f"""{START}
device, other = discover(nvml, timeout_ns=2_000_000_000)
def fails(work, word):
    try: work()
    except OperatingError as error: assert word in str(error), error
    else: raise AssertionError(word)
device.xids_ignored = frozenset({{31}})
assert device.read(()).faults == ()
control("xid", "0", "31"); assert device.read(()).faults == (), "a program's own error"
control("xid", "1", "62"); assert device.read(()).faults == () and other.read(()).faults == ("xid 62",)
fails(lambda: other.read(()), "xid 62")
assert other.read(()).faults == (), "the device answers again"
control("hang-nvml", "0")
fails(lambda: device.read(()), "no answer"); fails(lambda: device.read(()), "hung")
control("clear", "0"); until(lambda: not nvml.is_hung)
# The driver hangs, not NVML, so a lane cannot be cleared. The first call times out, later ones fail at once.
control("hang", "1")
fails(lambda: other.open_lane(2 * MIB), "no answer"); fails(lambda: other.open_lane(2 * MIB), "earlier call")
assert device.read(()).faults == () and other.read(()).faults == ()
control("clear", "1"); until(lambda: not other._thread.is_hung); other.close_lane(other.open_lane(2 * MIB))
control("lose", "1"); fails(lambda: other.read(()), "fallen off"); fails(lambda: other.open_lane(2 * MIB), "failed")
control("clear", "1"); assert other.read(()).faults == ()
# As on hardware, Xid 48 ends the daemon's own context too: only a new process can use the device.
control("xid", "1", "48"); assert other.read(()).faults == ("xid 48",)
fails(lambda: other.read(()), "xid 48")
for _ in range(2): fails(lambda: other.read(()), "ECC")
"""
    emulator.run(code, CONTROL=control)


UUIDS = (DeviceId("GPU-11aa"), DeviceId("GPU-22bb"), DeviceId("GPU-2233"))


@pytest.mark.parametrize(
    ("visible", "places"),
    [
        (None, (0, 1, 2)),
        ("", ()),
        ("2,0", (2, 0)),
        ("GPU-22bb,0", (1, 0)),
        ("GPU-22", ()),
        ("1,9,0", (1,)),
        ("0,0", (0,)),
    ],
)
def test_visible_devices_select_by_index_and_uuid(visible: str | None, places: tuple[int, ...]) -> None:
    assert select_devices(UUIDS, visible) == tuple(UUIDS[place] for place in places)
