"""fair: the session with the least attained service for its weight runs next.

Bound (docs/policies.md): between two sessions that always wait, attained / weight differs by at most the longest
iteration of the leading session divided by its weight, plus `FairSlack`.
"""

from __future__ import annotations

from nodedaemon.core.fairness import SCALE_BITS
from nodedaemon.core.ordering import Breadth, Policy, Waiting
from nodedaemon.core.types import DeviceLimits


class Fair(Policy):
    """Sessions of equal weight attain equal service, whatever their iterations cost."""

    breadth = Breadth.ALL

    def __init__(self, limits: DeviceLimits) -> None:
        super().__init__(limits)
        self._slack = limits.fair_slack_ns << SCALE_BITS

    def key(self, session: Waiting, now_ns: int) -> tuple[int, ...]:  # noqa: ARG002  virtual_service includes the time
        return (session.virtual_service,)

    def lease_service(self, holder: Waiting, first: Waiting) -> int | None:
        return (first.virtual_service + self._slack - holder.virtual_service) * holder.weight
