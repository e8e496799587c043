"""Counts how often waiters were overtaken, in constant time.

A waiter is overtaken when an iteration starts for a session that began to wait later. A session that overtakes a waiter
also overtakes all older ones, so the oldest waiter always has the highest count, and only that count is needed. Counts
are stored as differences along the list of waiters, so each operation changes one neighbour.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodedaemon.core.types import SessionId


class WaitList:
    """The waiters of one class in the order in which they began to wait."""

    __slots__ = ("_next", "_oldest", "_own", "_previous", "_total", "_youngest")

    def __init__(self) -> None:
        self._previous: dict[SessionId, SessionId | None] = {}
        self._next: dict[SessionId, SessionId | None] = {}
        self._own: dict[SessionId, int] = {}
        self._oldest: SessionId | None = None
        self._youngest: SessionId | None = None
        self._total = 0

    @classmethod
    def of(cls, entries: Iterable[tuple[SessionId, int]]) -> WaitList:
        """Restore a list from its `entries()`."""
        waits = cls()
        for session, own in entries:
            waits.append(session)
            waits.overtake_all(own)
        return waits

    def entries(self) -> tuple[tuple[SessionId, int], ...]:
        """Waiters from the oldest on, each with its difference to the next younger one."""
        found = []
        session = self._oldest
        while session is not None:
            found.append((session, self._own[session]))
            session = self._next[session]
        return tuple(found)

    def __len__(self) -> int:
        return len(self._own)

    @property
    def oldest(self) -> SessionId | None:
        return self._oldest

    @property
    def oldest_count(self) -> int:
        """How often the oldest waiter was overtaken: an upper bound, as a lease reports all its iterations together."""
        return self._total

    def append(self, session: SessionId) -> None:
        """Add a session that begins to wait."""
        self._previous[session], self._next[session] = self._youngest, None
        self._own[session] = 0
        if self._youngest is None:
            self._oldest = session
        else:
            self._next[self._youngest] = session
        self._youngest = session

    def remove(self, session: SessionId, *, is_granted: bool) -> None:
        """Remove a session that stops waiting. A grant overtakes all sessions that began to wait earlier."""
        previous, following = self._previous.pop(session), self._next.pop(session)
        own = self._own.pop(session)
        if previous is None:
            self._oldest = following
            self._total -= own
        else:
            self._next[previous] = following
            self._own[previous] += own + is_granted
            self._total += is_granted
        if following is None:
            self._youngest = previous
        else:
            self._previous[following] = previous

    def overtake_all(self, iteration_count: int) -> None:
        """Count iterations that started under a lease while all sessions of the list waited."""
        if self._youngest is not None:
            self._own[self._youngest] += iteration_count
            self._total += iteration_count
