"""srtf: the session with the shortest remaining time runs: the best average completion time where times are known.

The remaining time comes from the profile or from `--salus-time`; a session without one goes behind all that have one.
Times are guesses, and a job whose time is up has not ended: were it taken to end at once, it would keep its device from
everybody for as long as the guess was wrong. It is expected to take as long again as it is over its time.
"""

from __future__ import annotations

from nodedaemon.core.ordering import Breadth, Waiting


class Srtf:
    """Short jobs overtake long ones at the next boundary."""

    name = "srtf"
    breadth = Breadth.ONE

    def key(self, session: Waiting, now_ns: int) -> tuple[int, ...]:  # noqa: ARG002  time is in remaining_ns already
        if session.remaining_ns is None:
            return (1, 0, session.arrival_order)
        return (0, abs(session.remaining_ns), session.arrival_order)

    def lease_ns(self, holder: Waiting, first: Waiting) -> int | None:
        if self.key(first, 0) < self.key(holder, 0):
            return 0
        if holder.remaining_ns is None or first.remaining_ns is None:
            return None
        return max(1, holder.remaining_ns + abs(first.remaining_ns))
