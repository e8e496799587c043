"""Runs a `World` in virtual time: iterations have lengths, and things happen in the order of their moments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from nodedaemon.core.types import SessionId
from tests.support.engine_world import World


@dataclass
class Timeline:
    """`length_ns(session)` gives the wall time of its next iteration; everybody always wants the next one."""

    world: World
    length_ns: Callable[[SessionId], int]
    ends_ns: dict[SessionId, int] = field(default_factory=dict)
    longest_ns: dict[SessionId, int] = field(default_factory=dict)
    on_start: Callable[[SessionId], None] = lambda session: None

    def _start_new(self) -> None:
        self.world.confirm_all()
        for session in self.world.grants:
            if session not in self.ends_ns:
                self._start(session)

    def _start(self, session: SessionId) -> None:
        length_ns = self.length_ns(session)
        self.longest_ns[session] = max(self.longest_ns.get(session, 0), length_ns)
        self.ends_ns[session] = self.world.now_ns + length_ns
        self.on_start(session)

    def step(self) -> None:
        """Go to the next moment at which something happens, and let it happen."""
        self._start_new()
        end_ns = min(self.ends_ns.values(), default=None)
        wake_ns = self.world.wake_ns
        assert end_ns is not None or wake_ns is not None, "nobody runs and nobody will look again"
        if end_ns is None or (wake_ns is not None and wake_ns < end_ns):
            self.world.tick()
        else:
            session = min(self.ends_ns, key=lambda one: (self.ends_ns[one], one))
            self.world.now_ns = end_ns
            del self.ends_ns[session]
            if not self.world.boundary(session):
                self._start(session)
        self._start_new()
