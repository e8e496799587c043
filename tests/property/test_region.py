"""The lane's allocator agrees with a model of the allocated bytes, over long and short sequences."""

from __future__ import annotations

import ctypes
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

LIBSALUS = Path(__file__).parents[2] / "nodedaemon" / "job" / "libsalus"
NONE = 2**64 - 1
LINE_BYTES = 64
PAGE_BYTES = 4096
LIMIT_BYTES = 8 << 20


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    subprocess.run(["make", "-s", "-C", LIBSALUS, "build/libsalus-region.so"], check=True)
    library = ctypes.CDLL(str(LIBSALUS / "build" / "libsalus-region.so"))
    region, word = ctypes.c_void_p, ctypes.c_uint64
    library.region_open.argtypes = library.region_limit.argtypes = [region, word]
    library.region_drop.argtypes = library.region_is_sound.argtypes = [region]
    library.region_allocate.argtypes = [region, word, word, word]
    library.region_free.argtypes = [region, word]
    library.region_allocate.restype = library.region_free.restype = word
    library.region_next.argtypes = [region, region]
    library.region_next.restype = region
    library.region_is_sound.restype = ctypes.c_bool
    return library


class Model:
    """One byte per line of memory: 0 free, 1 allocated. Every answer of the allocator is checked against it."""

    def __init__(self, library: ctypes.CDLL, limit_bytes: int = LIMIT_BYTES) -> None:
        self._library = library
        self._memory = ctypes.create_string_buffer(512)
        self._region = ctypes.addressof(self._memory)
        assert library.region_open(self._region, limit_bytes) == 0
        self.limit_bytes = limit_bytes
        self.lines = bytearray(limit_bytes // LINE_BYTES)
        self.blocks: dict[int, int] = {}
        self.offsets: list[int] = []
        self.high_bytes = 0

    def close(self) -> None:
        self._library.region_drop(self._region)

    @staticmethod
    def rounded(size_bytes: int) -> int:
        lines_bytes = -(-size_bytes // LINE_BYTES) * LINE_BYTES
        return lines_bytes if lines_bytes < PAGE_BYTES else -(-size_bytes // PAGE_BYTES) * PAGE_BYTES

    def allocate(self, size_bytes: int, align_bytes: int = 64) -> bool:
        offset = self._library.region_allocate(self._region, size_bytes, align_bytes, 1)
        need = self.rounded(size_bytes) // LINE_BYTES
        align = max(align_bytes, PAGE_BYTES if self.rounded(size_bytes) >= PAGE_BYTES else LINE_BYTES)
        if offset == NONE:
            # A refusal is right only if no gap is sure to hold an aligned block of this size.
            assert self.lines.find(bytes(need + align // LINE_BYTES)) < 0
            return False
        first = offset // LINE_BYTES
        assert offset % align == 0
        assert offset + size_bytes <= self.limit_bytes
        assert self.lines.find(1, first, first + need) < 0, "overlaps a live block"
        self.lines[first : first + need] = b"\1" * need
        self.blocks[offset] = size_bytes
        self.offsets.append(offset)
        self.high_bytes = max(self.high_bytes, offset + need * LINE_BYTES)
        return True

    def free(self, position: int) -> None:
        offsets = self.offsets
        position %= len(offsets)
        offset, offsets[position] = offsets[position], offsets[-1]
        offsets.pop()
        size_bytes = self.blocks.pop(offset)
        assert self._library.region_free(self._region, offset) == size_bytes
        need = self.rounded(size_bytes) // LINE_BYTES
        first = offset // LINE_BYTES
        self.lines[first : first + need] = bytes(need)

    def check(self) -> None:
        assert self._library.region_is_sound(self._region)
        listed: list[int] = []
        extent = self._library.region_next(self._region, None)
        while extent:
            listed.append(ctypes.c_uint64.from_address(extent).value)
            extent = self._library.region_next(self._region, extent)
        assert listed == sorted(self.blocks), "the live blocks, by offset"


@pytest.fixture
def model(library: ctypes.CDLL) -> Iterator[Model]:
    model = Model(library)
    yield model
    model.close()


def test_a_million_operations_agree_with_the_model(model: Model) -> None:
    rng = random.Random(20260711)
    for number in range(1_000_000):
        # Fill and drain in turn, so that both full lanes and coalescing occur.
        is_filling = number // 5_000 % 2 == 0
        if not model.offsets or rng.random() < (0.6 if is_filling else 0.4):
            # Larger blocks are rare: a full lane refuses them, and each refusal costs the model a scan.
            model.allocate(
                int(2 ** rng.uniform(0, 19 if number % 50 == 0 else 15)), 1 << rng.choice((6, 6, 6, 6, 12, 14))
            )
        else:
            model.free(rng.randrange(len(model.offsets)))
        if number % 20_000 == 0:
            model.check()
    while model.offsets:
        model.free(0)
    model.check()
    assert model.allocate(LIMIT_BYTES), "all free extents have coalesced again"


operations = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 40_000), st.sampled_from([1, 64, 256, 4096, 8192])),
        st.tuples(st.just(0), st.integers(0, 1000)),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(operations)
def test_every_short_sequence_agrees_with_the_model(library: ctypes.CDLL, sequence: list[tuple[int, int]]) -> None:
    model = Model(library, 256 << 10)
    for size_bytes, argument in sequence:
        if size_bytes:
            model.allocate(size_bytes, argument)
        elif model.offsets:
            model.free(argument)
        model.check()
    model.close()


def test_the_lowest_gap_is_taken_so_that_the_highest_offset_stays_low(model: Model) -> None:
    for _ in range(4):
        model.allocate(PAGE_BYTES)
    first, third = sorted(model.blocks)[0], sorted(model.blocks)[2]
    model.free(model.offsets.index(third))
    model.free(model.offsets.index(first))
    model.allocate(100)
    assert first in model.blocks
    model.allocate(PAGE_BYTES)
    assert third in model.blocks
    assert model.high_bytes == 4 * PAGE_BYTES


def test_a_block_that_fills_a_page_has_it_to_itself(model: Model) -> None:
    model.allocate(64)
    model.allocate(PAGE_BYTES - 1)
    assert sorted(model.blocks) == [0, PAGE_BYTES]


def test_only_a_live_block_can_be_freed(library: ctypes.CDLL, model: Model) -> None:
    model.allocate(PAGE_BYTES)
    assert library.region_free(model._region, 64) == NONE
    model.free(0)
    assert library.region_free(model._region, 0) == NONE


def test_a_lower_limit_applies_to_new_blocks_and_a_higher_one_allows_more(library: ctypes.CDLL, model: Model) -> None:
    model.allocate(LIMIT_BYTES // 2)
    assert library.region_limit(model._region, LIMIT_BYTES // 2) == 0
    assert library.region_allocate(model._region, 1, 64, 0) == NONE
    assert library.region_limit(model._region, 2 * LIMIT_BYTES) == 0
    assert library.region_allocate(model._region, LIMIT_BYTES, 64, 0) == LIMIT_BYTES // 2
    assert library.region_is_sound(model._region)
