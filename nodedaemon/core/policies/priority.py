"""priority: while a higher class waits or runs, no iteration of a lower one starts; inside a class as `fair`.

Bound (docs/policies.md): the first high waiter waits for at most the iterations under way and one hand-over.
"""

from __future__ import annotations

from nodedaemon.core.fairness import SCALE_BITS
from nodedaemon.core.ordering import Breadth, Waiting


class Priority:
    """A high-class job hardly notices its neighbours. The engine puts the class before the key itself."""

    name = "priority"
    breadth = Breadth.CLASS

    def __init__(self, slack_ns: int = 0) -> None:
        self._slack = slack_ns << SCALE_BITS

    def key(self, session: Waiting, now_ns: int) -> tuple[int, ...]:  # noqa: ARG002  time is in virtual_service already
        return (session.virtual_service,)

    def lease_service(self, holder: Waiting, first: Waiting) -> int | None:
        return (first.virtual_service + self._slack - holder.virtual_service) * holder.weight
