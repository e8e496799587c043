"""Asks salus-admitd over TCP with a munge credential: how commands on login nodes learn anything (docs/protocol.md).

One connection, one request line, one answer line. The credential covers the request, so nobody can change or reuse it.
"""

import json
import socket
from collections.abc import Mapping
from typing import Any

from cli.entry import FailedError, NotFoundError, NotPermittedError, UnreachableError
from nodedaemon.config.keys import Admission
from nodedaemon.core.errors import OperatingError, RequestError

ANSWER_WAIT_S = 60.0
ANSWER_BYTES_MAX = 64 * 1024 * 1024


def ask_admission(settings: Admission, request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of salus-admitd; its refusals come back as the errors that give a command its exit code."""
    from slurm_plugin.admitd.credentials import sign

    if settings.port == 0:
        raise UnreachableError("salus-admitd not asked: AdmissionPort is 0 here; ask an admin to set it, or be root")
    address = f"{settings.host}:{settings.port}"
    try:
        signed = sign(request)
    except OperatingError as error:
        raise UnreachableError(str(error)) from error
    try:
        with socket.create_connection((settings.host, settings.port), timeout=ANSWER_WAIT_S) as connection:
            connection.sendall(json.dumps(signed).encode() + b"\n")
            line = connection.makefile("rb").readline(ANSWER_BYTES_MAX)
    except OSError as error:
        raise UnreachableError(
            f"salus-admitd not reached: {address}: {error.strerror or error}; is it running? see AdmissionHost"
        ) from error
    if not line.endswith(b"\n"):
        raise UnreachableError(f"salus-admitd not understood: {address}: the answer breaks off; see its log")
    try:
        answer = json.loads(line)
    except ValueError as error:
        raise UnreachableError(f"salus-admitd not understood: {address}: {error}; see its log") from error
    return _checked(answer, address)


def _checked(answer: object, address: str) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise UnreachableError(f"salus-admitd not understood: {address}: the answer is no object; see its log")
    if answer.get("ok") is True:
        return answer
    why = str(answer.get("why") or "no reason given")
    match answer.get("kind"):
        case "not_found":
            raise NotFoundError(why)
        case "not_permitted":
            raise NotPermittedError(why)
        case "usage":
            raise RequestError(why)
        case "unreachable":
            raise UnreachableError(why)
        case _:
            raise FailedError(why)
