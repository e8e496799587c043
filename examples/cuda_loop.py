"""A training-like loop over cuda-python: persistent weights, temporary activations, and checks of the data.

It takes the place of a framework on a real GPU and on the emulator, on which no framework runs. It allocates directly
or through a small caching allocator that keeps freed segments as PyTorch does. It runs the same with and without Salus.
With Salus (`SALUS_SOCKET` set, libsalus preloaded) it marks where its iterations begin.

    python examples/cuda_loop.py --iterations 100 --weights-mib 64 --activations-mib 128 --cached

SIGTERM ends it after the current iteration, with its report.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuda.bindings import driver

try:
    from salus_job import layouts
except ImportError:
    layouts = None  # not under Salus

MIB = 1 << 20
MULTIPLIER = 1664525
WORD = 1 << 32
# Words of each block that the kernel changes and the program checks: enough to notice bytes of another job.
CHECKED_WORDS = 1024
SEGMENT_BYTES = 2 * MIB

# A real kernel: data[i] = data[i] * 1664525 + value. Its comment tells the emulator, which runs no code, what it does.
PTX = """// salus-kernel: mix ns={ns} sm={sm} bandwidth=20 effect=mix
.version 7.0
.target sm_60
.address_size 64
.visible .entry mix(.param .u64 data, .param .u32 count, .param .u32 value)
{{
    .reg .pred %p<2>;
    .reg .b32 %r<9>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [data];
    ld.param.u32 %r1, [count];
    ld.param.u32 %r2, [value];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.u32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r6, %r1;
    @%p1 bra DONE;
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r6, 4;
    add.u64 %rd4, %rd2, %rd3;
    ld.global.u32 %r7, [%rd4];
    mad.lo.u32 %r8, %r7, 1664525, %r2;
    st.global.u32 [%rd4], %r8;
DONE:
    ret;
}}
"""


class CudaError(Exception):
    """A result other than success."""


def ok(answer: tuple[Any, ...]) -> Any:
    if answer[0] != driver.CUresult.CUDA_SUCCESS:
        raise CudaError(answer[0].name)
    return answer[1] if len(answer) == 2 else answer[1:]


class PlainAllocator:
    """Every block is the driver's own."""

    def allocate(self, size_bytes: int) -> int:
        return int(ok(driver.cuMemAlloc(size_bytes)))

    def free(self, address: int) -> None:
        ok(driver.cuMemFree(address))

    def live(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        return [], []


@dataclass
class Segment:
    address: int
    size_bytes: int
    used: dict[int, int] = field(default_factory=dict)

    def place(self, size_bytes: int) -> int | None:
        at = 0
        for offset, length in sorted(self.used.items()):
            if offset - at >= size_bytes:
                break
            at = offset + length
        return at if self.size_bytes - at >= size_bytes else None


class CachingAllocator:
    """Keeps freed segments and places blocks in them. If memory runs out, it frees empty segments and tries again."""

    def __init__(self) -> None:
        self._segments: list[Segment] = []

    def allocate(self, size_bytes: int) -> int:
        size_bytes = -(-size_bytes // 512) * 512
        for segment in self._segments:
            if (offset := segment.place(size_bytes)) is not None:
                segment.used[offset] = size_bytes
                return segment.address + offset
        whole = -(-size_bytes // SEGMENT_BYTES) * SEGMENT_BYTES
        try:
            address = int(ok(driver.cuMemAlloc(whole)))
        except CudaError:
            self.empty()
            address = int(ok(driver.cuMemAlloc(whole)))
        self._segments.append(Segment(address, whole, {0: size_bytes}))
        return address

    def free(self, address: int) -> None:
        for segment in self._segments:
            if segment.used.pop(address - segment.address, None) is not None:
                return

    def empty(self) -> None:
        for segment in [one for one in self._segments if not one.used]:
            ok(driver.cuMemFree(segment.address))
            self._segments.remove(segment)

    def live(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        segments = [(one.address, one.size_bytes) for one in self._segments]
        blocks = [(one.address + at, size) for one in self._segments for at, size in one.used.items()]
        return segments, blocks


class Salus:
    """The loop's calls to Salus; without Salus they do nothing."""

    def __init__(self, device_uuid: str, listing: str = "live") -> None:
        self._library: Any = None
        self._listing = listing
        path = os.environ.get("SALUS_SOCKET")
        library = ctypes.CDLL(None)
        if not path or layouts is None or not hasattr(library, "salus_cuda_live"):
            return
        size_bytes = ctypes.sizeof(layouts.HelloOptions)
        options = layouts.HelloOptions(size_bytes=size_bytes, device=device_uuid.encode())
        error = library.salus_hello(path.encode(), ctypes.byref(options), None)
        if error:
            reason = ctypes.create_string_buffer(layouts.TEXT_BYTES)
            library.salus_reason(reason, layouts.TEXT_BYTES)
            why = reason.value.decode() or os.strerror(-error)
            sys.stderr.write(f"cuda_loop: hello: {why}; running without Salus\n")
            return
        self._library = library

    @property
    def is_attached(self) -> bool:
        return self._library is not None

    def boundary(self, allocator: PlainAllocator | CachingAllocator) -> None:
        if self._library is None:
            return
        if self._library.salus_cuda_will_yield() and self._listing != "off":
            segments, blocks = (_ranges(part) for part in allocator.live())
            count = len(blocks) if self._listing == "live" else 0
            self._library.salus_cuda_live(segments, len(segments), blocks, count)
        self._library.salus_boundary()

    def handed_over(self) -> tuple[int, int]:
        """How often the lane was handed over, and how many bytes were saved for it."""
        if self._library is None:
            return 0, 0
        counters = layouts.Counters()
        self._library.salus_counters(ctypes.byref(counters))
        return counters.handover_count, counters.stash_copied_bytes

    def leave(self) -> None:
        """Return the lane, because no iteration follows for now."""
        if self._library is not None:
            self._library.salus_leave()

    def bye(self) -> None:
        if self._library is not None:
            self._library.salus_report(ctypes.c_uint64(1), ctypes.c_uint64(1), b"explicit")
            self._library.salus_bye()


def _ranges(pairs: list[tuple[int, int]]) -> Any:
    return (layouts.CudaRange * len(pairs))(*pairs)


@dataclass
class Block:
    """A block of device memory whose checked words all hold `word`."""

    address: int
    word: int


class Loop:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        ok(driver.cuInit(0))
        device = ok(driver.cuDeviceGet(0))
        ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(device))))
        text = PTX.format(ns=arguments.kernel_us * 1000, sm=arguments.sm_percent)
        self._kernel = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(text.encode() + b"\0")), b"mix"))
        self._stream = ok(driver.cuStreamCreateWithPriority(1, arguments.priority))
        self._start, self._end = ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
        self.device_ns: list[int] = []
        self._words = (ctypes.c_uint32 * CHECKED_WORDS)()
        self.allocator = CachingAllocator() if arguments.cached else PlainAllocator()
        raw = bytes(ok(driver.cuDeviceGetUuid(device)).bytes)[:16].hex()
        self.salus = Salus(f"GPU-{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}", arguments.listing)
        self.check_count = 0
        self.wrong_count = 0
        self.refused: list[str] = []
        self.handed_over = (0, 0)
        self._survivors: list[Block] = []
        self._weights = self._make(arguments.weights_mib * MIB, 1)

    def _make(self, size_bytes: int, word: int) -> Block:
        block = Block(self.allocator.allocate(size_bytes), word)
        ok(driver.cuMemsetD32Async(block.address, word, CHECKED_WORDS, self._stream))
        return block

    def _mix(self, block: Block, value: int) -> None:
        types = (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32)
        values = ((block.address, CHECKED_WORDS, value), types)
        blocks = -(-CHECKED_WORDS // 256)
        ok(driver.cuLaunchKernel(self._kernel, blocks, 1, 1, 256, 1, 1, 0, self._stream, values, 0))
        block.word = (block.word * MULTIPLIER + value) % WORD

    def _check(self, block: Block) -> None:
        ok(driver.cuMemcpyDtoHAsync(ctypes.addressof(self._words), block.address, CHECKED_WORDS * 4, self._stream))
        ok(driver.cuStreamSynchronize(self._stream))
        self.check_count += 1
        self.wrong_count += any(word != block.word for word in self._words)

    def iterate(self, number: int) -> None:
        """One iteration: activations are allocated and freed; one block survives until the next iteration."""
        salt = number * 2654435761 + os.getpid()
        try:
            activations = self._make(self._arguments.activations_mib * MIB, salt % WORD)
        except CudaError as error:
            self.refused.append(str(error))
            return
        ok(driver.cuEventRecord(self._start, self._stream))
        for kernel in range(self._arguments.kernels):
            self._mix(activations, (salt + kernel) % WORD)
        ok(driver.cuEventRecord(self._end, self._stream))
        self._check(activations)
        self.device_ns.append(int(ok(driver.cuEventElapsedTime(self._start, self._end)) * 1e6))
        for survivor in self._survivors:
            self._mix(survivor, number)
            self._check(survivor)
            self.allocator.free(survivor.address)
        self._survivors = [self._make(self._arguments.survivor_kib * 1024, (salt + 7) % WORD)]
        self._mix(self._weights, number)
        self._check(self._weights)
        self.allocator.free(activations.address)

    def close(self) -> None:
        self.handed_over = self.salus.handed_over()
        for block in (*self._survivors, self._weights):
            self.allocator.free(block.address)
        if isinstance(self.allocator, CachingAllocator):
            self.allocator.empty()
        self.salus.bye()


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A training-like loop over cuda-python that checks its data.")
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--weights-mib", type=int, default=16)
    parser.add_argument("--activations-mib", type=int, default=32)
    parser.add_argument("--survivor-kib", type=int, default=256)
    parser.add_argument("--kernels", type=int, default=2, help="launches per iteration")
    parser.add_argument("--kernel-us", type=int, default=100, help="modelled time of each launch on the emulator")
    parser.add_argument("--sm-percent", type=int, default=100, help="modelled device share of each launch")
    parser.add_argument("--priority", type=int, default=0, help="priority of the stream; a lower number runs first")
    parser.add_argument("--cached", action="store_true", help="use the caching allocator")
    parser.add_argument(
        "--listing",
        choices=["live", "off", "empty"],
        default="live",
        help="with --cached, what the loop reports on its segments: live blocks, nothing, or (wrongly) no live blocks",
    )
    parser.add_argument("--leave", action="store_true", help="hold no lane between iterations, as a server would")
    parser.add_argument("--pause-us", type=int, default=0, help="pause between iterations")
    parser.add_argument("--count-file", default="", help="file for the number of finished iterations")
    parser.add_argument("--started", action="store_true", help="print a line once the loop is ready")
    return parser.parse_args(arguments)


def report(loop: Loop, times_ns: list[int]) -> dict[str, Any]:
    times_ns.sort()
    device_ns = sorted(loop.device_ns) or [0]
    handover_count, stashed_bytes = loop.handed_over
    return {
        "pid": os.getpid(),
        "attached": loop.salus.is_attached,
        "iterations": len(times_ns),
        "checks": loop.check_count,
        "wrong": loop.wrong_count,
        "refused": len(loop.refused),
        "refused_with": sorted(set(loop.refused)),
        "p50_ns": times_ns[len(times_ns) // 2] if times_ns else 0,
        "p99_ns": times_ns[len(times_ns) * 99 // 100] if times_ns else 0,
        "handovers": handover_count,
        "stashed_bytes": stashed_bytes,
        "device_p50_ns": device_ns[len(device_ns) // 2],
        "device_p99_ns": device_ns[len(device_ns) * 99 // 100],
    }


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    loop = Loop(options)
    if options.started:
        sys.stdout.write("started\n")
        sys.stdout.flush()
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    times_ns: list[int] = []
    for number in range(options.iterations):
        if signals:
            break
        loop.salus.boundary(loop.allocator)
        start_ns = time.monotonic_ns()
        loop.iterate(number)
        times_ns.append(time.monotonic_ns() - start_ns)
        if options.count_file:
            # Rename it into place, so that a reader sees the last number or this one, never an empty file.
            part = Path(f"{options.count_file}.part")
            part.write_text(str(len(times_ns)))
            part.replace(options.count_file)
        if options.leave:
            loop.salus.leave()
        if options.pause_us:
            time.sleep(options.pause_us / 1e6)
    loop.close()
    sys.stdout.write(json.dumps(report(loop, times_ns)) + "\n")
    return 1 if loop.wrong_count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
