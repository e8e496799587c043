"""Values that the whole project shares: ids, sizes, classes, profiles and limits.

All are frozen and compare by value. Bytes and nanoseconds are integers; a name ends with its unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NewType

DeviceId = NewType("DeviceId", str)
JobId = NewType("JobId", str)
SessionId = NewType("SessionId", int)
LaneId = NewType("LaneId", int)
Domain = NewType("Domain", str)
Epoch = NewType("Epoch", int)

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
MICROSECOND_NS = 1_000
MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS
HOUR_NS = 60 * MINUTE_NS
DAY_NS = 24 * HOUR_NS

#: Allocation granularity of a CUDA driver. Every size is rounded up to it first.
GRANULARITY_BYTES = 2 * MIB

#: The policy of a device for which salus.conf names none; core.policies has the list.
POLICY_DEFAULT = "fair"


class JobClass(IntEnum):
    """The class of a job. The policy `priority` serves smaller values first. A higher class ignores `DomainQuantum`."""

    HIGH = 0
    NORMAL = 1
    BEST_EFFORT = 2

    def __str__(self) -> str:
        """The name that users write: `best-effort`."""
        return self.name.lower().replace("_", "-")

    @classmethod
    def named(cls, name: str) -> JobClass | None:
        """The class with that name, or None."""
        return next((one for one in cls if str(one) == name), None)


class LaneSharing(StrEnum):
    """Whose jobs may use the same lane memory in turn."""

    USER = "user"
    ACCOUNT = "account"
    ALL = "all"

    def domain(self, user: str, account: str) -> Domain:
        """The trust domain of a job. Jobs of equal domains may share lane memory."""
        if self is LaneSharing.ALL:
            return Domain("all")
        return Domain(f"user:{user}" if self is LaneSharing.USER else f"account:{account}")


@dataclass(frozen=True, slots=True)
class Profile:
    """Measured memory and iteration time of a signature on a device model, without headroom."""

    persistent_bytes: int
    ephemeral_bytes: int
    iteration_ns: int | None = None
    run_count: int = 1


@dataclass(frozen=True, slots=True)
class Shortfall:
    """One reason why something is impossible: what is missing, how much is needed, how much is free."""

    what: str
    needed: int
    free: int
    unit: str = "bytes"
    advice: str = ""

    def text(self) -> str:
        unit = self.unit.removesuffix("s") if self.needed == 1 else self.unit
        text = f"{self.what}: {self.needed} {unit} needed, {self.free} free"
        return f"{text}; {self.advice}" if self.advice else text


class FaultAction(StrEnum):
    """What happens to a session that hangs, or that exceeds its admitted memory when no more is free."""

    WARN = "warn"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """The limits of a device. `capacity_bytes` is the memory for sessions, without the daemon's own share."""

    capacity_bytes: int
    lane_reserve_bytes: int = 0
    lanes_max: int = 4
    policy: str = POLICY_DEFAULT
    overtakes_max: int = 1000
    domain_quantum_ns: int = SECOND_NS
    idle_release_ns: int = 200 * MILLISECOND_NS
    fair_slack_ns: int = 0
    service_half_life_ns: int | None = None
    hang_timeout_ns: int = 60 * SECOND_NS
    on_hang: FaultAction = FaultAction.WARN
    on_overrun: FaultAction = FaultAction.WARN
