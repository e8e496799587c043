"""Errors, grouped by the person who must act.

A decision is a value, never an exception. Code that calls foreign code translates its errors into one of the three
subclasses, with a message of the form `what failed: on what: why; what to do`.
"""


class SalusError(Exception):
    """Base of all errors that Salus raises; raise one of its subclasses."""


class RequestError(SalusError):
    """The user requested something impossible: one line, exit status 2, no traceback."""


class PeerError(SalusError):
    """A session or another node misbehaved: end that session, keep the rest."""


class OperatingError(SalusError):
    """The database, a driver, Slurm or a disk failed: retry within a limit, then degrade and report it."""
