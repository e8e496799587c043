"""srtf: the session with the shortest remaining time runs: the best average completion time where times are known.

The remaining time comes from the profile or from `--salus-time`; a session without one goes behind all that have one.
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
        return (0, session.remaining_ns, session.arrival_order)
