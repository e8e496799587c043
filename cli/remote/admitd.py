"""Asks salus-admitd over TCP with a munge credential: the only way to reach it from a login node (docs/protocol.md)."""

import socket
from collections.abc import Mapping
from typing import Any

from nodedaemon.config import Settings
from nodedaemon.wire.envelope import UnreachableError, exchange_line, write_request

ANSWER_WAIT_S = 60.0


def ask_admission(settings: Settings, request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of salus-admitd. A refusal is raised as the matching exception."""
    from slurm_plugin.admitd.credentials import sign

    host, port = settings.admission.host, settings.admission.port
    if port == 0:
        raise UnreachableError(
            "salus-admitd not reached: AdmissionPort is 0; ask an admin to set it, or run this as root"
        )
    server = f"salus-admitd: {host}:{port}"
    line = sign(write_request(request), settings.slurm.user)
    try:
        connection = socket.create_connection((host, port), timeout=ANSWER_WAIT_S)
    except OSError as error:
        raise UnreachableError(f"{server}: {error.strerror or error}; is it running? see AdmissionHost") from error
    with connection:
        return exchange_line(connection, server, line)
