"""pack: any lane with room runs, in the order of arrival: the most work at once, no promise about turns."""

from __future__ import annotations

from nodedaemon.core.ordering import Breadth, Waiting


class Pack:
    """Fills the device: for sweeps of equal jobs, where nobody minds who ends first."""

    name = "pack"
    breadth = Breadth.ALL

    def key(self, session: Waiting, now_ns: int) -> tuple[int, ...]:  # noqa: ARG002  the order does not depend on time
        return (session.arrival_order,)
