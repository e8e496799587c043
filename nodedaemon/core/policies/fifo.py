"""fifo: the session that arrived first runs until it leaves; others fill the time in which it wants nothing."""

from __future__ import annotations

from nodedaemon.core.ordering import Breadth, Waiting


class Fifo:
    """What users know from a plain batch system, without the idle device."""

    name = "fifo"
    breadth = Breadth.ONE

    def key(self, session: Waiting, now_ns: int) -> tuple[int, ...]:  # noqa: ARG002  the order does not depend on time
        return (session.arrival_order,)
