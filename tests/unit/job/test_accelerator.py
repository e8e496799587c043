"""CUDA memory, with a stand-in for torch.cuda that keeps live bytes in reserved segments as its allocator does."""

import ctypes
from collections.abc import Callable

from salus_job.boundary import BoundaryRule
from salus_job.frameworks.torch.adaptor import TorchAdaptor
from salus_job.layouts import Entry
from salus_job.object_numbers import ObjectNumbers
from salus_job.profile_reporter import ProfileReporter
from salus_job.session import JobSession

MIB = 1 << 20


class FakeCuda:
    """Keeps segments of 2 MiB reserved, and records the calls."""

    def __init__(self) -> None:
        self.live_bytes = self.peak_bytes = self.reserved_bytes = self.reserved_peak_bytes = 0
        self.calls: list[str] = []
        self.fraction = 0.0

    def allocate(self, size_bytes: int) -> None:
        self.live_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        self.reserved_bytes = max(self.reserved_bytes, -(-self.live_bytes // (2 * MIB)) * 2 * MIB)
        self.reserved_peak_bytes = max(self.reserved_peak_bytes, self.reserved_bytes)

    def free(self, size_bytes: int) -> None:
        self.live_bytes -= size_bytes

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def memory_allocated(self) -> int:
        return self.live_bytes

    def max_memory_allocated(self) -> int:
        self.calls.append("peak")
        return self.peak_bytes

    def max_memory_reserved(self) -> int:
        return self.reserved_peak_bytes

    def reset_peak_memory_stats(self) -> None:
        self.calls.append("reset")
        self.peak_bytes, self.reserved_peak_bytes = self.live_bytes, self.reserved_bytes

    def empty_cache(self) -> None:
        self.calls.append("empty")

    def mem_get_info(self) -> tuple[int, int]:
        return 3 * MIB, 8 * MIB

    def set_per_process_memory_fraction(self, fraction: float) -> None:
        self.fraction = fraction

    def memory_snapshot(self) -> list[dict[str, object]]:
        blocks = [
            {"address": 4096, "size": 512, "state": "active_allocated"},
            {"address": 4608, "size": 1536, "state": "inactive"},
            {"address": 6144, "size": 2048, "state": "active_pending_free"},
        ]
        unknown = [{"size": 512, "state": "of a later release"}]
        return [
            {"address": 4096, "total_size": 4096, "blocks": blocks},
            {"address": 65536, "total_size": 512, "blocks": unknown},
        ]


class FakeVersion:
    cuda = "13.0"


class FakeTorch:
    def __init__(self) -> None:
        self.cuda, self.version = FakeCuda(), FakeVersion()


class FakeLibrary:
    """Records the calls of libsalus at a boundary, in one list with those of torch.cuda."""

    def __init__(self, calls: list[str]) -> None:
        self.calls, self.live, self.ranges = calls, (0, 0), ([], [])
        self.reserved: tuple[int, int] | None = None
        self.salus_enter = lambda: 0
        self.salus_entry_words = lambda: ctypes.pointer(Entry(is_fast_path=1))
        self.salus_bye = self.salus_persist_begin = self.salus_persist_end = lambda: None

    def salus_boundary(self) -> int:
        self.calls.append("boundary")
        return 0

    def salus_live(self, persistent_bytes: int, ephemeral_bytes: int) -> None:
        self.live = (persistent_bytes, ephemeral_bytes)

    def salus_reserved(self, persistent_bytes: int, ephemeral_bytes: int) -> None:
        self.reserved = (persistent_bytes, ephemeral_bytes)

    def salus_cuda_will_yield(self) -> int:
        return 1

    def salus_cuda_live(self, segments, segment_count, blocks, block_count) -> int:
        self.ranges = tuple(
            [(item.address, item.size_bytes) for item in list(array)[:count]]
            for array, count in ((segments, segment_count), (blocks, block_count))
        )
        return 0

    def salus_report(self, *_: object) -> int:
        return 0


def iterate(cuda: FakeCuda, size_bytes: int) -> None:
    cuda.allocate(size_bytes)
    cuda.free(size_bytes)


def test_persistent_and_ephemeral_bytes_are_running_maxima() -> None:
    torch = FakeTorch()
    torch.cuda.allocate(MIB)
    device = TorchAdaptor(torch).find_accelerator()
    for size_bytes in (3 * MIB, 5 * MIB, 2 * MIB):
        iterate(torch.cuda, size_bytes)
        device.before_boundary()
        device.after_boundary()
    assert (device.live_persistent_bytes, device.live_ephemeral_bytes) == (MIB, 5 * MIB)
    # In segments, P + E is the reserved peak.
    assert device.persistent_bytes + device.ephemeral_bytes == 6 * MIB


def test_a_process_that_uses_no_gpu_has_no_accelerator() -> None:
    torch = FakeTorch()
    torch.cuda.is_initialized = lambda: False
    assert TorchAdaptor(torch).find_accelerator() is None


def test_the_cap_is_a_share_of_the_device() -> None:
    torch = FakeTorch()
    assert TorchAdaptor(torch).find_accelerator().cap(2 * MIB)
    assert torch.cuda.fraction == 0.25
    torch.cuda.set_per_process_memory_fraction = None
    assert not TorchAdaptor(torch).find_accelerator().cap(2 * MIB)


def test_live_ranges_leave_out_segments_in_an_unknown_state() -> None:
    assert TorchAdaptor(FakeTorch()).find_accelerator().live_ranges() == {(4096, 4096): [(4096, 512), (6144, 2048)]}


def make_reporter(torch: FakeTorch, library: FakeLibrary) -> tuple[ProfileReporter, Callable[[], None]]:
    """The reporter of a session, and a function that passes one boundary."""
    session = JobSession(library)
    reporter, rule, roots = ProfileReporter(session, TorchAdaptor(torch)), BoundaryRule(), ObjectNumbers(lambda: None)

    def pass_boundary() -> None:
        reporter.before_boundary()
        session.boundary()
        reporter.after_boundary(rule, roots)

    return reporter, pass_boundary


def test_a_boundary_waits_for_the_device_and_measures_before_the_gate() -> None:
    torch = FakeTorch()
    library = FakeLibrary(torch.cuda.calls)
    reporter, pass_boundary = make_reporter(torch, library)
    torch.cuda.allocate(MIB)
    pass_boundary()
    iterate(torch.cuda, 3 * MIB)
    torch.cuda.calls.clear()
    pass_boundary()
    assert torch.cuda.calls == ["synchronize", "peak", "boundary", "reset"]
    assert library.live == (MIB, 3 * MIB)
    assert library.reserved is None, "libsalus in the driver's place counts segments itself"
    assert library.ranges == ([(4096, 4096)], [(4096, 512), (6144, 2048)])
    assert reporter.next_due_ns == 0, "libsalus passes no boundary by itself"


def test_segments_are_reported_if_libsalus_is_not_in_the_drivers_place() -> None:
    class PlainLibrary(FakeLibrary):
        """Like libsalus.so, without the CUDA part."""

        def __getattribute__(self, name: str) -> object:
            if name.startswith("salus_cuda_"):
                raise AttributeError(name)
            return super().__getattribute__(name)

    torch = FakeTorch()
    library = PlainLibrary(torch.cuda.calls)
    _, pass_boundary = make_reporter(torch, library)
    torch.cuda.allocate(MIB)
    for _ in range(2):
        iterate(torch.cuda, 3 * MIB)
        pass_boundary()
    assert library.reserved == (MIB, 3 * MIB)
    assert library.ranges == ([], [])
