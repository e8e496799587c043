"""fifo: the session that arrived first runs until it leaves. While it is idle, the next in line runs."""

from __future__ import annotations

from nodedaemon.core.ordering import Breadth, Policy, Waiting


class Fifo(Policy):
    """The order of a plain batch system, without the idle device."""

    breadth = Breadth.ONE

    def key(self, session: Waiting, now_ns: int) -> tuple[int, ...]:  # noqa: ARG002  the order does not depend on time
        return (session.arrival_order,)
