"""The verified identity of the user who asks, and the two errors that depend on it.

A server builds a Viewer from a checked credential (munge, SO_PEERCRED), never from what a client claims. Every query
filters by it. Only root and SlurmUser may open the database itself.
"""

from dataclasses import dataclass

from nodedaemon.wire.envelope import NotFoundError, NotPermittedError


class DeniedError(NotPermittedError):
    """The viewer may not see or change this."""


class AbsentError(NotFoundError):
    """There is no such job or profile."""


@dataclass(frozen=True)
class Viewer:
    """A user sees only their own jobs and profiles; an operator sees all."""

    uid: int
    user: str
    is_operator: bool = False
