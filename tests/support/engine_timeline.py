"""Runs a `World` in virtual time: iterations have lengths, and events happen in order of time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from nodedaemon.core.types import SessionId
from tests.support.engine_world import World


@dataclass
class Timeline:
    """`length_ns(session)` is the wall time of its next iteration. Every session always wants another iteration."""

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
        """Go to the next boundary or wake-up, and send its event."""
        self._start_new()
        end_ns = min(self.ends_ns.values(), default=None)
        wake_ns = self.world.wake_ns
        assert end_ns is not None or wake_ns is not None, "no session runs and no wake-up is due"
        if end_ns is None or (wake_ns is not None and wake_ns < end_ns):
            self.world.tick()
        else:
            session = min(self.ends_ns, key=lambda one: (self.ends_ns[one], one))
            self.world.now_ns = end_ns
            del self.ends_ns[session]
            if not self.world.boundary(session):
                self._start(session)
        self._start_new()
