"""fair: the session with the least attained service for its weight runs next.

Bound (docs/policies.md): between two sessions that always wait, attained / weight differs by at most the longest
iteration of the leading session divided by its weight, plus `FairSlack`.
"""

from __future__ import annotations

from nodedaemon.core.ordering import Breadth, EqualProgress


class Fair(EqualProgress):
    """Sessions of equal weight attain equal service, whatever their iterations cost."""

    breadth = Breadth.ALL
