"""The figures of a report and how they follow from sums: the arithmetic of docs/accounting.md, in one place.

`Measures` holds only what may be added, so that a total is the sum of its parts; a ratio is taken at the end, from
sums, never as a mean of ratios. What cannot be known is None and shows as n/a, never as 0.
"""

import msgspec


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over a set of job runs within a window.

    The `known_` fields cover only usage whose profile has a solo iteration time: alone, and with it gain and
    slowdown, speak of that part. The `share_` fields are of achieved over entitled, one term a job.
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
        """How long the known part would have taken with a device to itself."""
        return self.known_alone_ns if self.known_count else None

    @property
    def sharing_gain(self) -> float | None:
        """alone / occupied, over the known part: jobs that merely take turns gain nothing."""
        return _ratio(self.known_alone_ns, self.known_occupied_ns) if self.known_count else None

    @property
    def slowdown(self) -> float | None:
        """elapsed / alone, over the known part."""
        return _ratio(self.known_present_ns, self.known_alone_ns) if self.known_count else None

    @property
    def memory_saved_mib_ms(self) -> int:
        """Sum of peaks over what was really held."""
        return self.peak_mib_ms - self.held_mib_ms

    @property
    def jain(self) -> float | None:
        """Jain's index of achieved over entitled: 1 when each job had the same part of what it was entitled to."""
        return _ratio(self.share_sum * self.share_sum, self.share_count * self.share_square_sum)

    @property
    def queue_wait_mean_ns(self) -> int | None:
        return self.queue_wait_ns // self.queue_wait_count if self.queue_wait_count else None


def percentile(counts: list[tuple[int, int]], part: float) -> int | None:
    """The value at `part` of a distribution given as (value, count), by nearest rank; None if it is empty."""
    total = sum(count for _, count in counts)
    if total == 0:
        return None
    # Nearest rank: the smallest value with at least `part` of all at or below it.
    rank = max(1, -int(-part * total // 1))
    for value, count in sorted(counts):
        rank -= count
        if rank <= 0:
            return value
    raise AssertionError("the ranks end with the last value")


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
