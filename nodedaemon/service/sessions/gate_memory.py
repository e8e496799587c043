"""The daemon's side of the shared pages: one gate page per session, one turn page per user, domain and device.

docs/protocol.md specifies who writes which word and when; nodedaemon/wire/salus_pages.h has the layout. Words are read
and written with the atomic operations of libatomic, because Python's stores are not atomic. The daemon
relies on a session's words only where a false one harms that session alone.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import mmap
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from nodedaemon.core.errors import OperatingError, PeerError
from nodedaemon.drivers.host import SEALS
from nodedaemon.drivers.process import file_identity
from nodedaemon.wire.messages import MAGIC
from nodedaemon.wire.pages import (
    EPOCH_MASK,
    EPOCH_SHIFT,
    LOWER_MASK,
    PAGE_BYTES,
    PAGE_VERSION,
    SEQUENCE_MASK,
    SEQUENCE_STEP,
    SLOT_BYTES,
    STATE_MASK,
    UNLIMITED,
    UPPER_SHIFT,
    GatePageOffset,
    GateState,
    TurnPageOffset,
    TurnSlotOffset,
)

_SEQ_CST = 5
_FUTEX_WAKE = 1
_FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98, "ppc64le": 221}


@dataclass(frozen=True, slots=True)
class GateReading:
    """The session's words, read one after the other: untrusted, and not a consistent snapshot."""

    epoch: int
    state: GateState | None
    started_count: int
    #: The grant that was returned last: its epoch, and the counts that RETURN reports.
    returned_epoch: int
    returned_count: int
    returned_contended_count: int


class _Words:
    """Atomic operations on one mapped page."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, PAGE_BYTES)
        self._anchor = (ctypes.c_char * PAGE_BYTES).from_buffer(self._map)
        self._base = ctypes.addressof(self._anchor)
        self._atomics = _atomics()

    def load(self, offset: int) -> int:
        return int(self._atomics.load(self._base + offset, _SEQ_CST))

    def store(self, offset: int, value: int) -> None:
        self._atomics.store(self._base + offset, value, _SEQ_CST)

    def exchange(self, offset: int, value: int) -> int:
        return int(self._atomics.exchange(self._base + offset, value, _SEQ_CST))

    def swap(self, offset: int, expected: int, value: int) -> bool:
        slot = ctypes.c_uint64(expected)
        found = self._atomics.swap(self._base + offset, ctypes.byref(slot), value, _SEQ_CST, _SEQ_CST)
        return bool(found)

    def ring(self, offset: int) -> None:
        self._atomics.add(self._base + offset, 1, _SEQ_CST)
        _wake(self._base + offset)

    def wake(self, offset: int) -> None:
        _wake(self._base + offset)

    def write(self, offset: int, content: bytes) -> None:
        self._map[offset : offset + len(content)] = content

    def close(self) -> None:
        del self._anchor
        self._map.close()


class Page:
    """A sealed memfd of one page that the daemon shares with a session; `identity` names it in the journal."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.identity = file_identity(os.fstat(fd))
        self._words = _Words(fd)

    @classmethod
    def _create(cls, name: str) -> int:
        try:
            fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise OperatingError(f"create page: {name}: {error.strerror}; raise LimitNOFILE of salusd") from error
        os.ftruncate(fd, PAGE_BYTES)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
        return fd

    def _head(self, session: int) -> None:
        self._words.write(0, MAGIC.to_bytes(4, "little") + PAGE_VERSION.to_bytes(4, "little"))
        self._words.store(GatePageOffset.SESSION, session)

    def close(self) -> None:
        if self.fd >= 0:
            self._words.close()
            os.close(self.fd)
            self.fd = -1


class GatePage(Page):
    """Carries lease, grant and successor to the session, and the session's state back."""

    @classmethod
    def create(cls, session: int) -> GatePage:
        page = cls(cls._create("salus-gate"))
        page._head(session)
        return page

    def arm(self, lane: int, lane_epoch: int, epoch: int, limit: int | None) -> None:
        """Prepare the session for `start`, or for a start by its predecessor."""
        self._words.store(GatePageOffset.SUCCESSOR, 0)
        self._words.store(GatePageOffset.LANE, lane)
        self._words.store(GatePageOffset.LANE_EPOCH, lane_epoch)
        self._words.store(GatePageOffset.LEASE, _lease(epoch, limit))

    def start(self, epoch: int) -> None:
        self._words.store(GatePageOffset.GRANT, epoch)

    def limit(self, epoch: int, limit: int | None) -> None:
        self._words.store(GatePageOffset.LEASE, _lease(epoch, limit))

    def limit_further(self, epoch: int, iteration_count: int) -> None:
        # Before the start, the count still belongs to the previous grant.
        has_started = _state_epoch(self._words.load(GatePageOffset.STATE)) == epoch & EPOCH_MASK
        started_count = self._words.load(GatePageOffset.STARTED_COUNT) & LOWER_MASK if has_started else 0
        self._words.store(GatePageOffset.LEASE, _lease(epoch, min(started_count + iteration_count, UNLIMITED - 1)))

    def name_successor(self, slot: int, epoch: int) -> None:
        self._words.store(GatePageOffset.SUCCESSOR, (epoch & EPOCH_MASK) << EPOCH_SHIFT | (slot + 1))

    def withdraw_successor(self) -> bool:
        """True if the holder had not taken the successor yet."""
        return self._words.exchange(GatePageOffset.SUCCESSOR, 0) != 0

    def hold_launches(self, limit: int, *, is_held: bool) -> None:
        """Hold the session's kernel launches back, or allow at most `limit` at a time (0: no limit)."""
        word = limit << UPPER_SHIFT | int(is_held)
        if self._words.exchange(GatePageOffset.LAUNCH, word) != word:
            self._words.wake(GatePageOffset.LAUNCH)

    def disarm(self, epoch: int) -> bool:
        """Take an armed epoch back; False when the session runs it or has run it."""
        if _state_epoch(self._words.load(GatePageOffset.STATE)) >= epoch:
            return False
        self._words.store(GatePageOffset.LEASE, 0)
        for _ in range(1000):
            # The session may be between reading the lease and its swap: a new sequence makes that swap fail.
            word = self._words.load(GatePageOffset.STATE)
            if _state_epoch(word) >= epoch:
                return False
            if self._words.swap(GatePageOffset.STATE, word, _following(word)):
                return True
        # Only a session that keeps changing its word gets here; it counts as running.
        return False

    def take_idle(self, epoch: int) -> bool:
        """Take the lease back from an idle session; False if it is not idle."""
        word = self._words.load(GatePageOffset.STATE)
        if word & STATE_MASK != GateState.IDLE or _state_epoch(word) != epoch & EPOCH_MASK:
            return False
        revoked = (_following(word) & ~STATE_MASK) | GateState.REVOKED
        return self._words.swap(GatePageOffset.STATE, word, revoked)

    def read(self) -> GateReading:
        word = self._words.load(GatePageOffset.STATE)
        kind = word & STATE_MASK
        returned_counts = self._words.load(GatePageOffset.RETURNED_COUNTS)
        return GateReading(
            epoch=_state_epoch(word),
            state=GateState(kind) if kind in GateState._value2member_map_ else None,
            started_count=self._words.load(GatePageOffset.STARTED_COUNT),
            returned_epoch=self._words.load(GatePageOffset.RETURNED_EPOCH),
            returned_count=returned_counts & LOWER_MASK,
            returned_contended_count=returned_counts >> UPPER_SHIFT,
        )


class TurnPage(Page):
    """The bells and offers of up to 63 sessions that may start each other."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.used_slots: set[int] = set()

    @classmethod
    def create(cls) -> TurnPage:
        page = cls(cls._create("salus-turn"))
        page._head(0)
        return page

    def ring(self, slot: int) -> None:
        self._words.ring(_slot_offset(slot) + TurnSlotOffset.WAKE_COUNT)

    def clear(self, slot: int) -> None:
        """Remove the offer of the previous owner of the slot."""
        self._words.store(_slot_offset(slot) + TurnSlotOffset.OFFER, 0)


PageType = TypeVar("PageType", bound=Page)


def adopt_page(kind: type[PageType], fd: int, identity: str) -> PageType:
    """Map the page that a session kept across a restart. Raises `PeerError` for any other descriptor.

    The caller still owns `fd`, as in all functions that adopt memory: descriptors from a peer are closed in one place.
    """
    try:
        is_ours = (
            file_identity(os.fstat(fd)) == identity
            and os.fstat(fd).st_size == PAGE_BYTES
            and fcntl.fcntl(fd, fcntl.F_GET_SEALS) == SEALS
        )
    except OSError as error:
        raise PeerError(f"adopt page: {identity}: {error.strerror}") from error
    if not is_ours:
        raise PeerError(f"adopt page: {identity}: the descriptor is not that page")
    return kind(os.dup(fd))


def _slot_offset(slot: int) -> int:
    return TurnPageOffset.SLOTS + slot * SLOT_BYTES


def _state_epoch(word: int) -> int:
    return word >> EPOCH_SHIFT


def _following(word: int) -> int:
    """The state word with the next sequence."""
    return (word & ~SEQUENCE_MASK) | ((word + SEQUENCE_STEP) & SEQUENCE_MASK)


def _lease(epoch: int, limit: int | None) -> int:
    return (epoch & LOWER_MASK) << UPPER_SHIFT | (UNLIMITED if limit is None else min(limit, UNLIMITED - 1))


class _Atomics:
    """The compiler's atomic library, loaded with the first page: programs that map none do not need it."""

    def __init__(self) -> None:
        try:
            library = ctypes.CDLL("libatomic.so.1")
        except OSError as error:
            raise OperatingError("map gate page: libatomic.so.1 not found; install libatomic1") from error
        pointer, word, order = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int
        self.load = _bind(library, "load_8", [pointer, order], word)
        self.store = _bind(library, "store_8", [pointer, word, order], None)
        self.exchange = _bind(library, "exchange_8", [pointer, word, order], word)
        self.swap = _bind(library, "compare_exchange_8", [pointer, pointer, word, order, order], ctypes.c_bool)
        self.add = _bind(library, "fetch_add_4", [pointer, ctypes.c_uint32, order], ctypes.c_uint32)


def _bind(library: ctypes.CDLL, name: str, arguments: list[Any], result: Any) -> Callable[..., int]:
    function = library[f"__atomic_{name}"]
    function.argtypes, function.restype = arguments, result
    return function


@functools.cache
def _atomics() -> _Atomics:
    return _Atomics()


_libc = ctypes.CDLL(None, use_errno=True)


def _wake(address: int) -> None:
    number = _FUTEX_NUMBERS.get(platform.machine())
    if number is None:
        raise OperatingError(f"wake session: {platform.machine()}: futex number unknown; add it to gate_memory.py")
    # Not FUTEX_PRIVATE: the sleeper is another process.
    _libc.syscall(number, ctypes.c_void_p(address), _FUTEX_WAKE, 1 << 30, None, None, 0)
