"""The scheduling policies: one file per policy, and the registry that names them.

A policy gives each session its position in the order. It never touches a lane and never checks memory: the engine
orders by the policy's key, grants, and checks the memory rule last, so a bad policy can be unfair but never unsafe.
"""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name

from nodedaemon.core.errors import RequestError
from nodedaemon.core.ordering import Policy
from nodedaemon.core.types import DeviceLimits

#: One line per policy: its name, and `module:class` below this package. Nothing else in the project lists the names.
_REGISTRY = {
    "fifo": "fifo:Fifo",
    "srtf": "srtf:Srtf",
    "pack": "pack:Pack",
    "fair": "fair:Fair",
    "priority": "priority:Priority",
}

POLICIES: dict[str, Callable[[DeviceLimits], Policy]] = {
    name: resolve_name(f"{__name__}.{target}") for name, target in _REGISTRY.items()
}


def make_policy(limits: DeviceLimits) -> Policy:
    """Create the policy that `limits` names. Raises `RequestError` for an unknown name."""
    if limits.policy not in POLICIES:
        raise RequestError(f"policy {limits.policy}: unknown; use one of {', '.join(POLICIES)}")
    return POLICIES[limits.policy](limits)
