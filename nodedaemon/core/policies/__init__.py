"""Who goes first. A policy gives each session its place in the order; it never touches a lane, never checks memory.

The engine orders by the key, grants, and checks the memory rule last: the worst policy is unfair, never unsafe. One
small file a policy; the registry below is explicit (docs/policies.md).
"""

from __future__ import annotations

from collections.abc import Callable

from nodedaemon.core.ordering import Policy
from nodedaemon.core.policies.fair import Fair
from nodedaemon.core.policies.fifo import Fifo
from nodedaemon.core.policies.pack import Pack
from nodedaemon.core.policies.priority import Priority
from nodedaemon.core.policies.srtf import Srtf
from nodedaemon.core.types import DeviceLimits

#: Every policy that `Policy=` in salus.conf may name.
POLICIES: dict[str, Callable[[DeviceLimits], Policy]] = {
    "fifo": lambda _limits: Fifo(),
    "srtf": lambda _limits: Srtf(),
    "pack": lambda _limits: Pack(),
    "fair": lambda limits: Fair(limits.fair_slack_ns),
    "priority": lambda limits: Priority(limits.fair_slack_ns),
}
