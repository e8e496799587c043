"""pack: every lane with room runs, in order of arrival. It keeps the device full and guarantees no turns."""

from __future__ import annotations

from nodedaemon.core.ordering import Breadth, Policy, Waiting


class Pack(Policy):
    """For sweeps of equal jobs, where it does not matter which job ends first."""

    breadth = Breadth.ALL

    def key(self, session: Waiting, now_ns: int) -> tuple[int, ...]:  # noqa: ARG002  the order does not depend on time
        return (session.arrival_order,)
