"""Asks the salusd of this node: one JSON line to its control socket, one back.

The configuration names the socket. If no daemon answers there, and the user named no configuration, the user's own
daemon (`salus run`) is tried.
"""

import os
import socket
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import typer

from cli.entry import FailedError
from cli.site.config import config_of
from nodedaemon.config import load_or_raise
from nodedaemon.core.errors import OperatingError
from nodedaemon.service.private import private_config
from nodedaemon.wire.envelope import UnreachableError, exchange
from nodedaemon.wire.trust import require_own_server

ANSWER_WAIT_S = 10.0
T = TypeVar("T")


def node_name() -> str:
    """The name of the node that the command runs on."""
    return os.environ.get("SLURMD_NODENAME", "") or socket.gethostname().partition(".")[0]


class DaemonClient:
    """A connection to one salusd. `cli.entry` turns its errors into exit codes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection.settimeout(ANSWER_WAIT_S)
        try:
            self._connection.connect(str(path))
        except OSError as error:
            self._connection.close()
            raise UnreachableError(
                f"salusd: {path}: {error.strerror or error}; is it running? systemctl status salusd"
            ) from error
        try:
            require_own_server(self._connection, f"salusd: {path}")
        except OperatingError:
            self._connection.close()
            raise

    def ask(self, verb: str, **fields: Any) -> dict[str, Any]:
        """Send a request and return the answer. A refusal is raised as the matching exception."""
        return exchange(self._connection, f"salusd: {self.path}", {"verb": verb, **fields})

    def ask_for(self, kind: type[T], verb: str, **fields: Any) -> T:
        """Like `ask`, but returns the answer as a value of `nodedaemon.wire.control`."""
        answer = self.ask(verb, **fields)
        try:
            return msgspec.convert(answer, kind)
        except msgspec.ValidationError as error:
            raise FailedError(f"salusd: {self.path}: {error}; it runs a different release; restart it") from error

    def close(self) -> None:
        self._connection.close()


def connect(context: typer.Context) -> DaemonClient:
    """Connect to the daemon of the configuration or, without one, to the user's own."""
    path = Path(config_of(context).for_node(node_name()).daemon.control_socket)
    is_named = context.find_root().obj is not None or "SALUS_CONF" in os.environ
    try:
        return DaemonClient(path)
    except UnreachableError:
        own = None if is_named else private_config()
        if own is None:
            raise
        return DaemonClient(Path(load_or_raise(own).for_node(node_name()).daemon.control_socket))
