"""priority: while a higher class waits or runs, no iteration of a lower class starts. Inside a class it is `fair`.

Bound (docs/policies.md): the first high waiter waits at most for the iterations under way and one hand-over.
"""

from __future__ import annotations

from nodedaemon.core.ordering import Breadth, EqualProgress


class Priority(EqualProgress):
    """Jobs of lower classes hardly slow down a high-class job. The engine itself puts the class before the key."""

    breadth = Breadth.CLASS
