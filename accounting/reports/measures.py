"""The figures of a report and how they are computed from sums. docs/accounting.md defines them.

`Measures` contains only quantities that may be added, so a total is the sum of its parts. Ratios are computed last,
from sums, never as a mean of ratios. An unknown figure is None and is shown as n/a, never as 0.
"""

import msgspec

from nodedaemon.core.fairness import jain_of_sums


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over a set of job runs within a window.

    The `known_` fields cover only usage whose profile has a solo iteration time; alone, gain and slowdown refer to
    that part. The `share_` fields are sums of achieved over entitled, with one term per job.
    """

    job_count: int = 0
    held_ns: int = 0
    suspended_ns: int = 0
    elapsed_ns: int = 0
    queue_wait_ns: int = 0
    queue_wait_count: int = 0
    busy_ns: int = 0
    occupied_ns: int = 0
    running_ns: int = 0
    gate_wait_ns: int = 0
    outside_ns: int = 0
    entitled_ns: int = 0
    iteration_count: int = 0
    handover_count: int = 0
    peak_mib_ms: int = 0
    held_mib_ms: int = 0
    known_alone_ns: int = 0
    known_occupied_ns: int = 0
    known_present_ns: int = 0
    known_count: int = 0
    usage_count: int = 0
    share_sum: float = 0.0
    share_square_sum: float = 0.0
    share_count: int = 0

    def __add__(self, other: "Measures") -> "Measures":
        return Measures(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})

    @property
    def efficiency(self) -> float | None:
        """busy / occupied."""
        return _ratio(self.busy_ns, self.occupied_ns)

    @property
    def alone_ns(self) -> int | None:
        """How long the known part would have taken on a device of its own."""
        return self.known_alone_ns if self.known_count else None

    @property
    def sharing_gain(self) -> float | None:
        """alone / occupied, over the known part. Jobs that only take turns gain nothing."""
        return _ratio(self.known_alone_ns, self.known_occupied_ns) if self.known_count else None

    @property
    def slowdown(self) -> float | None:
        """elapsed / alone, over the known part."""
        return _ratio(self.known_present_ns, self.known_alone_ns) if self.known_count else None

    @property
    def memory_saved_mib_ms(self) -> int:
        """The sum of all peaks minus the memory that was held."""
        return self.peak_mib_ms - self.held_mib_ms

    @property
    def jain(self) -> float | None:
        """Jain's index of achieved over entitled: 1 if every job got the same fraction of what it was entitled to."""
        if not self.share_square_sum:
            return None
        return jain_of_sums(self.share_sum, self.share_square_sum, self.share_count)

    @property
    def queue_wait_mean_ns(self) -> int | None:
        return self.queue_wait_ns // self.queue_wait_count if self.queue_wait_count else None


def percentile(counts: list[tuple[int, int]], part: float) -> int | None:
    """The value at `part` of a distribution of (value, count), by nearest rank; None if it is empty."""
    total = sum(count for _, count in counts)
    if total == 0:
        return None
    # The nearest rank is that of the smallest value with at least `part` of all values at or below it.
    rank = max(1, -int(-part * total // 1))
    for value, count in sorted(counts):
        rank -= count
        if rank <= 0:
            return value
    raise AssertionError("the rank is at most the total count")


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
