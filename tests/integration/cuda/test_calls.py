"""Driver calls that Salus must handle in a gated job: capture and graphs, pools, memory of other processes.

docs/gpus.md has the table. Each test shows a row of it, in a session in a lane on the emulator.
"""

from __future__ import annotations

import json

import pytest

from tests.support.cuda_node import CudaNode
from tests.support.salusd import wait_until

START = """
import ctypes, json, sys, time
sys.path.insert(0, "examples")
import cuda_loop
from cuda_loop import CHECKED_WORDS, MULTIPLIER, WORD, Block, ok
from cuda.bindings import driver as d
MIB = 1 << 20
loop = cuda_loop.Loop(cuda_loop.parse(["--kernel-us", sys.argv[1] if len(sys.argv) > 1 else "50"]))
lib = ctypes.CDLL(None)
def is_lane(address): return bool(lib.salus_is_lane(ctypes.c_void_p(int(address))))
loop.salus.boundary(loop.allocator)
assert loop.salus.is_attached
"""

GRAPH = (
    START
    + """
block = Block(int(ok(d.cuMemAlloc(4 * MIB))), 7)
assert is_lane(block.address)
stream = loop._stream
ok(d.cuMemsetD32(block.address, 7, CHECKED_WORDS))
mode = d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
ok(d.cuStreamBeginCapture(stream, mode))
assert ok(d.cuStreamIsCapturing(stream)) == d.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
loop._mix(block, 5)
loop._mix(block, 6)
# The other job waits for the lane. A boundary during the capture must neither invalidate it nor hand over.
before, end_s = loop.salus.handed_over(), time.monotonic() + 50
while not lib.salus_cuda_will_yield():
    assert time.monotonic() < end_s, "no other job waits"
loop.salus.boundary(loop.allocator)
assert loop.salus.handed_over() == before
graph = ok(d.cuStreamEndCapture(stream))
assert ok(d.cuGraphGetNodes(graph, 8))[1] == 2
run = ok(d.cuGraphInstantiate(graph, 0))
block.word = 7
count, end_s = 0, time.monotonic() + 50
while count < 40 or loop.salus.handed_over()[0] < 5:
    assert time.monotonic() < end_s, loop.salus.handed_over()
    count += 1
    loop.salus.boundary(loop.allocator)
    ok(d.cuGraphLaunch(run, stream))
    for value in (5, 6): block.word = (block.word * MULTIPLIER + value) % WORD
    loop._check(block)
assert lib.salus_cuda_launch_count() >= 42
# What the driver forbids during a capture stays forbidden, and ends only the capture.
ok(d.cuStreamBeginCapture(stream, mode))
assert d.cuStreamSynchronize(stream)[0] == d.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
assert d.cuStreamEndCapture(stream)[0] == d.CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
ok(d.cuGraphExecDestroy(run)); ok(d.cuGraphDestroy(graph))
handovers = loop.salus.handed_over()[0]
ok(d.cuMemFree(block.address))
loop.close()
print(json.dumps({"checks": loop.check_count, "wrong": loop.wrong_count, "handovers": handovers}))
"""
)

UNWAITED = (
    START
    + """
block = Block(int(ok(d.cuMemAlloc(4 * MIB))), 7)
ok(d.cuMemsetD32(block.address, 7, CHECKED_WORDS))
number, end_s = 0, time.monotonic() + 40
while loop.salus.handed_over()[0] < 6 and time.monotonic() < end_s:
    number += 1
    # Nothing waits for this kernel here. It must be complete before the other job gets the lane.
    loop._mix(block, number)
    loop.salus.boundary(loop.allocator)
loop._check(block)
handovers = loop.salus.handed_over()[0]
ok(d.cuMemFree(block.address))
loop.close()
print(json.dumps({"wrong": loop.wrong_count, "handovers": handovers}))
"""
)

POOLS = (
    START
    + """
stream = loop._stream
props = d.CUmemPoolProps()
props.allocType = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
props.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
pool = ok(d.cuMemPoolCreate(props))
blocks = [ok(d.cuMemAllocFromPoolAsync(4 * MIB, pool, stream)), ok(d.cuMemAllocAsync(4 * MIB, stream))]
assert all(map(is_lane, blocks)), "blocks of a pool are placed in the lane"
for block in blocks: ok(d.cuMemsetD8Async(block, 1, 4 * MIB, stream))
codes = [d.cuMemPoolExportPointer(blocks[0])[0], d.cuIpcGetMemHandle(blocks[0])[0]]
assert {code.name for code in codes} == {"CUDA_ERROR_NOT_SUPPORTED"}
for block in blocks: ok(d.cuMemFreeAsync(block, stream))
ok(d.cuStreamSynchronize(stream))
ok(d.cuMemPoolTrimTo(pool, 0)); ok(d.cuMemPoolDestroy(pool))
# A pool cannot allocate beyond the session's limits either.
taken = []
pool = ok(d.cuDeviceGetDefaultMemPool(0))
while not (answer := d.cuMemAllocFromPoolAsync(16 * MIB, pool, stream))[0]: taken.append(answer[1])
assert answer[0] == d.CUresult.CUDA_ERROR_OUT_OF_MEMORY and len(taken) < 12
assert {is_lane(block) for block in taken} == {True, False}
for block in taken: ok(d.cuMemFreeAsync(block, stream))
# Other calls reach the driver and return its results.
names = [d.cuIpcOpenMemHandle(d.CUipcMemHandle(), 1)[0].name, d.cuMemAllocManaged(4096, 1)[0].name]
assert names == ["CUDA_ERROR_NOT_SUPPORTED"] * 2
loop.iterate(1)
loop.close()
print(json.dumps({"wrong": loop.wrong_count}))
"""
)


def test_a_graph_captured_in_a_lane_computes_correctly_after_every_hand_over() -> None:
    with CudaNode("tiny-1g", "MaxLanes=1") as node:
        jobs = [node.job("-c", GRAPH, program=()) for _ in range(2)]
        # A job goes on only while another one waits, so a third job runs until the last of the two is done.
        peer = node.job("--iterations", "1000000", "--kernel-us", "50")
        reports = [node.report(job) for job in jobs]
        peer.terminate()
        assert node.report(peer)["wrong"] == 0
    assert [report["wrong"] for report in reports] == [0, 0]
    assert min(report["checks"] for report in reports) >= 40
    assert min(report["handovers"] for report in reports) > 3, reports


def test_work_that_nobody_waited_for_is_complete_before_the_lane_is_handed_over() -> None:
    with CudaNode("tiny-1g", "MaxLanes=1\nPolicy=fair") as node:
        jobs = [node.job("-c", UNWAITED, "5000", program=()) for _ in range(2)]
        peer = node.job("--iterations", "1000000", "--kernel-us", "50")
        reports = [node.report(job) for job in jobs]
        peer.terminate()
        assert node.report(peer)["wrong"] == 0
    assert [report["wrong"] for report in reports] == [0, 0]
    assert min(report["handovers"] for report in reports) > 3, reports


def test_pools_allocate_in_the_lane_and_their_blocks_cannot_be_exported() -> None:
    with CudaNode("tiny-1g=224", "MaxLanes=1") as node:
        job = node.job("-c", POOLS, program=())
        out, err = job.communicate(timeout=60)
        assert job.returncode == 0, err
        assert json.loads(out) == {"wrong": 0}
    for call in ("cuMemPoolExportPointer", "cuIpcGetMemHandle"):
        assert f"salus: share memory: {call}: a gated job's memory cannot be shared" in err


IN_FLIGHT = (
    START
    + """
block = Block(int(ok(d.cuMemAlloc(4 * MIB))), 7)
ok(d.cuMemsetD32(block.address, 7, CHECKED_WORDS))
events = []
for number in range(5):
    loop._mix(block, number)
    events.append(ok(d.cuEventCreate(2)))
    ok(d.cuEventRecord(events[-1], loop._stream))
done = sum(not d.cuEventQuery(event)[0] for event in events)
loop._check(block)
ok(d.cuMemFree(block.address))
loop.close()
print(json.dumps({"done": done, "wrong": loop.wrong_count}))
"""
)


@pytest.mark.parametrize(("job_class", "done"), [("best-effort", {3, 4}), ("normal", {0, 1})])
def test_kernels_in_flight_of_best_effort_are_bounded_as_configured(job_class: str, done: set[int]) -> None:
    """If two kernels may be in flight beside a high-class session, three of five are done at the fifth launch."""
    with CudaNode("tiny-1g", "MaxLanes=2\nPolicy=pack\nBestEffortLaunches=2") as node:
        # The high job is attached but holds no grant, so launches are limited and not held back.
        idle = (
            "--iterations",
            "2",
            "--leave",
            "--pause-us",
            "600000000",
            "--count-file",
            str(node.directory / "count"),
        )
        node.job(*idle, job_class="high")
        wait_until((node.directory / "count").exists, "the high job has run and is idle")
        report = node.report(node.job("-c", IN_FLIGHT, "300000", program=(), job_class=job_class))
    assert report["wrong"] == 0
    assert report["done"] in done
