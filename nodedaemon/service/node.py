"""The identity of this node and of this run of salusd, with the clocks that stamp its records."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class NodeClock:
    """`monotonic_ns` measures spans, `utc_ns` dates records."""

    monotonic_ns: Callable[[], int] = time.monotonic_ns
    utc_ns: Callable[[], int] = time.time_ns


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """`incarnation` is new at each start of salusd: records of two runs never share a key."""

    name: str
    cluster: str
    version: str
    boot_id: str
    incarnation: str
    clock: NodeClock = field(default_factory=NodeClock)

    @classmethod
    def of_this_run(cls, name: str, cluster: str) -> NodeIdentity:
        return cls(name, cluster, version("salus"), BOOT_ID_FILE.read_text().strip(), str(uuid.uuid4()))

    @property
    def local_cluster(self) -> str:
        """The cluster of jobs that were started without Slurm."""
        return f"local@{self.name}"
