"""What a policy is, what it is told, and how its word is taken.

A policy is foreign code: its key may be of the wrong type or raise. `Ordering` asks it and never believes it: a session
whose key is nonsense sorts last.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol, runtime_checkable

from nodedaemon.core.fairness import SCALE_BITS
from nodedaemon.core.types import JobClass, SessionId

#: Where a nonsensical key sorts: behind everything that a sane policy says.
LAST = (1 << 256,)


class Breadth(Enum):
    """How many of a device's sessions may run side by side, in lanes of their own."""

    ONE = "only the first of the order runs"
    CLASS = "only sessions of the best class that waits or runs"
    ALL = "every lane with room"


class Waiting(NamedTuple):
    """A session as a policy sees it: a value, so that a policy can change nothing."""

    session: SessionId
    arrival_order: int
    job_class: JobClass
    weight: int
    #: Below 0 by how much it is over its time.
    remaining_ns: int | None
    virtual_service: int
    wanted_ns: int


class Policy(Protocol):
    """Gives each session of a device its place in the order: the smaller key goes first."""

    @property
    def name(self) -> str: ...

    @property
    def breadth(self) -> Breadth: ...

    def key(self, session: Waiting, now_ns: int) -> tuple[int, ...]: ...


@runtime_checkable
class TimedPolicy(Protocol):
    """A policy whose order changes while a session runs; the engine then knows when a lease must end."""

    def lease_service(self, holder: Waiting, first: Waiting) -> int | None:
        """Service that `holder` may yet attain before `first` goes first, in fixed point.

        0 or less means now, below 0 also that `holder` must not start beside it in another lane; None means never.
        """
        ...


@runtime_checkable
class LeasingPolicy(Protocol):
    """A policy under which a session that runs falls behind a waiter at some moment, and none is kept in step."""

    def lease_ns(self, holder: Waiting, first: Waiting) -> int | None:
        """Service that `holder` may yet attain before `first` goes first; 0 means now, None never."""
        ...


class Ordering:
    """Asks a policy and takes its word with care."""

    __slots__ = ("_leasing", "_timed", "breadth", "is_timed", "name", "policy")

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.name = policy.name
        self.breadth = policy.breadth
        self._timed = policy if isinstance(policy, TimedPolicy) else None
        self._leasing = policy if isinstance(policy, LeasingPolicy) else None
        self.is_timed = self._timed is not None

    def key(self, session: Waiting, now_ns: int) -> tuple[int, ...]:
        """The policy's key, or the last place if it raises or returns anything but a tuple of integers."""
        try:
            key = self.policy.key(session, now_ns)
        except Exception:  # a policy is foreign code: whatever it raises, the engine goes on
            return LAST
        if type(key) is tuple and all(type(part) is int or isinstance(part, int) for part in key):
            return key
        return LAST

    def lease_service(self, holder: Waiting, first: Waiting, now_ns: int) -> int | None:
        """Service after which `first` goes before `holder`: 0 or less for now, None for never while neither changes."""
        if self.breadth is Breadth.CLASS and first.job_class is not holder.job_class:
            return -1 if first.job_class < holder.job_class else None
        if self._timed is not None:
            try:
                service = self._timed.lease_service(holder, first)
            except Exception:  # as above
                return 0
            return service if service is None or isinstance(service, int) else 0
        if self._leasing is not None:
            try:
                left_ns = self._leasing.lease_ns(holder, first)
            except Exception:  # as above
                return 0
            return None if left_ns is None else left_ns << SCALE_BITS if isinstance(left_ns, int) else 0
        return 0 if self.key(first, now_ns) < self.key(holder, now_ns) else None

    def __deepcopy__(self, memo: dict[int, object]) -> Ordering:
        # A policy keeps no state of its own, so a fork of the engine shares it.
        return self
