"""Who asks: the identity that a server has verified, and the two answers that depend on it.

The server side builds a Viewer from a checked credential (munge, SO_PEERCRED), never from what a client says; each
store and report filters by it. Rights on the database itself belong to root and SlurmUser alone.
"""

from dataclasses import dataclass

from nodedaemon.wire.envelope import NotFoundError, NotPermittedError


class DeniedError(NotPermittedError):
    """The viewer may not see or change this."""


class AbsentError(NotFoundError):
    """There is no such job, profile or period with data."""


@dataclass(frozen=True)
class Viewer:
    """A plain user sees the own jobs and profiles; an operator all."""

    uid: int
    user: str
    is_operator: bool = False
