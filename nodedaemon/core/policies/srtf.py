"""srtf: the session with the shortest remaining time runs. With exact times, average completion time is optimal.

The remaining time comes from the profile or from `--salus-time`. A session without one runs after all that have one.
Times are estimates. A job that exceeds its estimate is expected to need as much more time as it has already
overrun. If we expected it to end at once, it would block its device for as long as the estimate was wrong.
"""

from __future__ import annotations

from nodedaemon.core.ordering import Breadth, Policy, Waiting


class Srtf(Policy):
    """Short jobs overtake long jobs at the next boundary."""

    breadth = Breadth.ONE

    def key(self, session: Waiting, now_ns: int) -> tuple[int, ...]:  # noqa: ARG002  remaining_ns includes the time
        if session.remaining_ns is None:
            return (1, 0, session.arrival_order)
        return (0, abs(session.remaining_ns), session.arrival_order)

    def lease_ns(self, holder: Waiting, first: Waiting) -> int | None:
        if self.key(first, 0) < self.key(holder, 0):
            return 0
        if holder.remaining_ns is None or first.remaining_ns is None:
            return None
        return max(1, holder.remaining_ns + abs(first.remaining_ns))
