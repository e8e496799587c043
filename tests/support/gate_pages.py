"""salusd's side of the two shared pages for tests of libsalus alone, carried out by the test build of libsalus.

docs/protocol.md is the specification. Python cannot compare and swap, so every change is a call into C.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nodedaemon.core.errors import OperatingError, PeerError
from nodedaemon.wire.pages import PAGE_BYTES, SLOT_COUNT, UNLIMITED, GatePageOffset, GateState

LIBRARY = Path(__file__).parents[2] / "nodedaemon" / "job" / "libsalus" / "build" / "libsalus-points.so"
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(frozen=True, slots=True)
class GateReading:
    """What the session says of itself: never a bound, an index or a proof."""

    state: GateState | None
    epoch: int
    iteration_count: int
    started_count: int
    boundary_ns: int
    returned_count: int


@cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        raise OperatingError(f"load libsalus: {LIBRARY}: {error}; run `make native`") from error
    page, word, count = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32
    library.salus_page_init_gate.argtypes = [page, word]
    library.salus_page_init_turn.argtypes = [page]
    library.salus_page_arm.argtypes = [page, word, word, word, count]
    library.salus_page_grant.argtypes = [page, page, count, word, word, word, count]
    library.salus_page_disarm.argtypes = [page, word]
    library.salus_page_limit.argtypes = [page, word, count]
    library.salus_page_name.argtypes = [page, count, word]
    library.salus_page_name.restype = word
    library.salus_page_revoke.argtypes = [page, word]
    library.salus_page_take_idle.argtypes = [page, word]
    library.salus_page_wake.argtypes = [page, count]
    for name in ("init_gate", "init_turn", "arm", "grant", "limit", "revoke", "wake"):
        getattr(library, f"salus_page_{name}").restype = None
    return library


class SharedPage:
    """A sealed memfd of one page, mapped here; `fd` may be sent to sessions."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._mapping = mmap.mmap(fd, PAGE_BYTES)
        self._anchor: ctypes.c_char | None = ctypes.c_char.from_buffer(self._mapping)
        self.address = ctypes.addressof(self._anchor)

    @property
    def inode(self) -> int:
        return os.fstat(self.fd).st_ino

    def close(self) -> None:
        # The mapping can be closed only once nobody points into it.
        self._anchor = None
        self._mapping.close()
        os.close(self.fd)

    def words(self, offset: int, count: int) -> tuple[int, ...]:
        return struct.unpack_from(f"<{count}Q", self._mapping, offset)


def _new_memfd(name: str) -> int:
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, PAGE_BYTES)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    return fd


def _check_memfd(fd: int) -> None:
    """A page that a session brings back after our restart must still be one of our kind."""
    try:
        is_page = os.fstat(fd).st_size == PAGE_BYTES and fcntl.fcntl(fd, fcntl.F_GET_SEALS) == SEALS
    except OSError as error:
        raise PeerError(f"adopt page: descriptor {fd}: {error.strerror}") from error
    if not is_page:
        raise PeerError(f"adopt page: descriptor {fd}: not a sealed page of {PAGE_BYTES} bytes")


class TurnPage(SharedPage):
    """Slots of the sessions of one uid, domain and device."""

    @classmethod
    def create(cls) -> TurnPage:
        page = cls(_new_memfd("salus-turn"))
        _library().salus_page_init_turn(page.address)
        return page

    @classmethod
    def adopt(cls, fd: int) -> TurnPage:
        _check_memfd(fd)
        return cls(fd)

    def wake(self, slot: int) -> None:
        """Has the session of that slot look at its words again."""
        _library().salus_page_wake(self.address, _slot(slot))


class GatePage(SharedPage):
    """The words between salusd and one session."""

    @classmethod
    def create(cls, session: int) -> GatePage:
        page = cls(_new_memfd("salus-gate"))
        _library().salus_page_init_gate(page.address, session)
        return page

    @classmethod
    def adopt(cls, fd: int) -> GatePage:
        _check_memfd(fd)
        return cls(fd)

    def arm(self, *, lane: int, lane_epoch: int, epoch: int, limit: int | None = None) -> None:
        """Prepare a grant that the present holder of the lane will start."""
        _library().salus_page_arm(self.address, lane, lane_epoch, epoch, _limit(limit))

    def grant(
        self, turn: TurnPage, slot: int, *, lane: int, lane_epoch: int, epoch: int, limit: int | None = None
    ) -> None:
        """Arm and start. `lane_epoch` is the one that LANE said; LANE may still be on its way."""
        _library().salus_page_grant(self.address, turn.address, _slot(slot), lane, lane_epoch, epoch, _limit(limit))

    def disarm(self, epoch: int) -> bool:
        """Take an armed grant back. True: too late, the session runs it or has run it."""
        return bool(_library().salus_page_disarm(self.address, epoch))

    def limit(self, epoch: int, further_count: int) -> None:
        """At most `further_count` more iterations start under this grant."""
        _library().salus_page_limit(self.address, epoch, min(further_count, UNLIMITED - 1))

    def name_successor(self, slot: int, epoch: int) -> int:
        """Name who is started at the return (0: nobody). Answers an epoch named before and not taken yet, else 0."""
        answer: int = _library().salus_page_name(self.address, _slot(slot), epoch)
        return answer

    def revoke(self, epoch: int) -> None:
        _library().salus_page_revoke(self.address, epoch)

    def take_idle(self, epoch: int) -> bool:
        """Take the lease of an idle holder back: True counts as returned, with nothing wanted next."""
        return bool(_library().salus_page_take_idle(self.address, epoch))

    def read(self) -> GateReading:
        (state,) = self.words(GatePageOffset.STATE, 1)
        iteration_count, started_count, boundary_ns, _, returned_counts = self.words(GatePageOffset.ITERATION_COUNT, 5)
        known = GateState(state & 0xFF) if state & 0xFF in tuple(GateState) else None
        returned_count = returned_counts & 0xFFFFFFFF
        return GateReading(known, state >> 16, iteration_count, started_count, boundary_ns, returned_count)


def _slot(slot: int) -> int:
    if not 0 <= slot < SLOT_COUNT:
        raise ValueError(f"turn page: slot {slot}: must be in 0..{SLOT_COUNT - 1}")
    return slot


def _limit(limit: int | None) -> int:
    return UNLIMITED if limit is None else min(limit, UNLIMITED - 1)
