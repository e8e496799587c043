"""The exceptions of Salus, told apart by who must act. A decision ("no room") is a value and never one of these.

Messages read `what failed: on what: why; what to do`.
"""


class SalusError(Exception):
    """Parent of all that Salus raises on purpose; catch it at a border, raise one of its children."""


class RequestError(SalusError):
    """The user or admin who asked must act: the request, an argument or a file is wrong. One line, no traceback."""


class PeerError(SalusError):
    """A peer (a session, a job's shim, another node) broke the protocol: end that peer, keep all others."""


class OperatingError(SalusError):
    """The surroundings failed (database, driver, Slurm, disk): retry with a bound, then degrade and say so."""
