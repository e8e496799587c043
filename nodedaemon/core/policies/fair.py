"""fair: the session with the least attained service for its weight runs next.

Bound (docs/policies.md): between sessions that never stop waiting, attained / weight differs by at most the longest
iteration of the one ahead divided by its weight, plus `FairSlack`.
"""

from __future__ import annotations

from nodedaemon.core.fairness import SCALE_BITS
from nodedaemon.core.ordering import Breadth, Waiting


class Fair:
    """Equal weights attain equal service, whatever their iterations cost."""

    name = "fair"
    breadth = Breadth.ALL

    def __init__(self, slack_ns: int = 0) -> None:
        self._slack = slack_ns << SCALE_BITS

    def key(self, session: Waiting, now_ns: int) -> tuple[int, ...]:  # noqa: ARG002  time is in virtual_service already
        return (session.virtual_service,)

    def lease_service(self, holder: Waiting, first: Waiting) -> int | None:
        return (first.virtual_service + self._slack - holder.virtual_service) * holder.weight
