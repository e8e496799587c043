"""The verified identity of the user who sends a request.

A server builds a Viewer from a checked credential (munge, SO_PEERCRED), never from what a client claims. Every query
filters by it. Only root, SlurmUser and the owner of a SQLite file may open the database itself.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Viewer:
    """A user sees only their own jobs and profiles; an operator sees all."""

    uid: int
    user: str
    is_operator: bool = False


#: The daemons themselves.
OPERATOR = Viewer(uid=0, user="root", is_operator=True)
