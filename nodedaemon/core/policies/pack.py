"""pack: every lane with room runs, in order of arrival. It keeps the device full and promises nothing about turns."""

from __future__ import annotations

from nodedaemon.core.ordering import Breadth
from nodedaemon.core.policies.fifo import Fifo


class Pack(Fifo):
    """The order of `fifo` in all lanes at once, for sweeps of equal jobs."""

    breadth = Breadth.ALL
