"""The interface of a policy, and the guard around it.

A policy is untrusted code: its key may have the wrong type, or it may raise. `Ordering` calls the policy and checks
every answer. A session with an invalid key sorts last.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import NamedTuple, Protocol, runtime_checkable

from nodedaemon.core.fairness import SCALE_BITS
from nodedaemon.core.types import DeviceLimits, JobClass, SessionId

#: The key of a session for which the policy returned an invalid one. It sorts after every key of a sane policy.
LAST = (1 << 256,)


class Breadth(Enum):
    """How many sessions of a device may run at the same time, each in its own lane."""

    ONE = "only the first of the order runs"
    CLASS = "only sessions of the best class that waits or runs"
    ALL = "every lane with room"


class Waiting(NamedTuple):
    """A session as a policy sees it: an immutable value."""

    session: SessionId
    arrival_order: int
    job_class: JobClass
    weight: int
    #: Negative once the session has exceeded its estimated time.
    remaining_ns: int | None
    virtual_service: int
    wanted_ns: int


class Policy(ABC):
    """Gives each session of a device its position in the order: the smaller key goes first.

    A policy keeps no state between calls. Only `limits` configures it.
    """

    breadth: Breadth

    def __init__(self, limits: DeviceLimits) -> None:
        self.limits = limits

    @abstractmethod
    def key(self, session: Waiting, now_ns: int) -> tuple[int, ...]:
        """The session's sort key."""


class EqualProgress(Policy):
    """Sessions attain service in proportion to their weights, within `FairSlack`."""

    def key(self, session: Waiting, now_ns: int) -> tuple[int, ...]:  # noqa: ARG002  virtual_service includes the time
        return (session.virtual_service,)

    def lease_service(self, holder: Waiting, first: Waiting) -> int | None:
        slack = self.limits.fair_slack_ns << SCALE_BITS
        return (first.virtual_service + slack - holder.virtual_service) * holder.weight


@runtime_checkable
class TimedPolicy(Protocol):
    """A policy of equal progress: its order changes while a session runs, and the engine keeps all lanes in step."""

    def lease_service(self, holder: Waiting, first: Waiting) -> int | None:
        """Service in fixed point that `holder` may still attain before `first` goes first.

        0 or less means now. A negative value also means that `holder` must not start in another lane while `first` is
        behind. None means never.
        """
        ...


@runtime_checkable
class LeasingPolicy(Protocol):
    """A policy without equal progress, under which a running session can fall behind a waiter."""

    def lease_ns(self, holder: Waiting, first: Waiting) -> int | None:
        """Service that `holder` may still attain before `first` goes first. 0 means now, None means never."""
        ...


class Ordering:
    """Calls a policy and validates its answers."""

    __slots__ = ("_leasing", "_timed", "breadth", "is_timed", "policy")

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.breadth = policy.breadth
        self._timed = policy if isinstance(policy, TimedPolicy) else None
        self._leasing = policy if isinstance(policy, LeasingPolicy) else None
        self.is_timed = self._timed is not None

    def key(self, session: Waiting, now_ns: int) -> tuple[int, ...]:
        """The policy's key, or `LAST` if the policy raises or returns anything but a tuple of integers."""
        try:
            key = self.policy.key(session, now_ns)
        except Exception:  # a policy is untrusted code: the engine continues whatever it raises
            return LAST
        if type(key) is tuple and all(type(part) is int or isinstance(part, int) for part in key):
            return key
        return LAST

    def lease_service(self, holder: Waiting, first: Waiting, now_ns: int) -> int | None:
        """Service after which `first` goes before `holder`: 0 or less is now; None is never, unless one changes."""
        if self.breadth is Breadth.CLASS and first.job_class is not holder.job_class:
            return -1 if first.job_class < holder.job_class else None
        if self._timed is None and self._leasing is None:
            return 0 if self.key(first, now_ns) < self.key(holder, now_ns) else None
        try:
            if self._timed is not None:
                service = self._timed.lease_service(holder, first)
            else:
                assert self._leasing is not None
                left_ns = self._leasing.lease_ns(holder, first)
                service = None if left_ns is None else left_ns << SCALE_BITS
        except Exception:  # as above
            return 0
        return service if service is None or isinstance(service, int) else 0

    def __deepcopy__(self, memo: dict[int, object]) -> Ordering:
        # A policy keeps no state, so a fork of the engine can share it.
        return self
