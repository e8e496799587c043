"""fifo: the session that arrived first runs until it leaves. While it is idle, the next in line runs."""

from __future__ import annotations

from nodedaemon.core.ordering import Breadth, Policy, Waiting


class Fifo(Policy):
    """Like a plain batch queue, except that the device does not stay idle while the first session is idle."""

    breadth = Breadth.ONE

    def key(self, session: Waiting, now_ns: int) -> tuple[int, ...]:  # noqa: ARG002  the order does not depend on time
        return (session.arrival_order,)
