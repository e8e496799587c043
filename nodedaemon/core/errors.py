"""What may go wrong, by who must act.

A decision is a value, never an exception: these are for faults. Each border translates foreign errors into one of the
three children and says `what failed: on what: why; what to do`.
"""


class SalusError(Exception):
    """Root of all errors that Salus raises on purpose; raise one of its children."""


class RequestError(SalusError):
    """The user asked for something that cannot be: one line, exit status 2, no traceback."""


class PeerError(SalusError):
    """A session or another node misbehaved: end that session, keep the rest."""


class OperatingError(SalusError):
    """Database, driver, Slurm or disk failed: retry with a bound, then degrade and say so."""
