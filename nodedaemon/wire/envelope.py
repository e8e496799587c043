"""The envelope of every JSON request in Salus: what hooks, commands and job_submit.lua send, and what servers answer.

    {"verb": "why", "job": "7"}  ->  {"ok": true, ...}
                                 or  {"ok": false, "why": "why: job 7: not in the queue", "kind": "not_found"}

A message is one JSON object: one line on a stream socket, one packet on salusd's session socket. This module owns the
key names, the size bounds and the kinds of failure. slurm_plugin/hooks/hook.py, slurm_plugin/lua/job_submit.lua and
slurm_plugin/spank have copies, because they run without our packages; tests/unit/wire/test_envelope.py compares them
with this module.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from nodedaemon.core.errors import OperatingError, RequestError, SalusError

REQUEST_BYTES_MAX: Final = 256 * 1024
#: Reports over months of a large cluster are the largest answers.
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
#: For a request or an answer on the session socket.
PACKET_BYTES_MAX: Final = 16 * 1024
#: Of a request. Ours have at most four levels.
DEPTH_MAX: Final = 32
_TEXTS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_OPENING: Final = frozenset(b"[{")
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))


class NotFoundError(RequestError):
    """The request names a job, device, profile or file that does not exist, or that the caller may not see."""


class NotPermittedError(RequestError):
    """The caller may not do or see this; an operator or admin may."""


class UnreachableError(OperatingError):
    """A daemon or the database does not answer; its administrator must act."""


#: The first match counts, so subclasses come before their parents.
FAILURE_KINDS: Final[tuple[tuple[str, type[SalusError]], ...]] = (
    ("not_found", NotFoundError),
    ("not_permitted", NotPermittedError),
    ("unreachable", UnreachableError),
    ("usage", RequestError),
    ("failed", OperatingError),
)


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request that was refused or that failed. `kind` is one of `FAILURE_KINDS`."""

    ok: bool = False
    why: str
    kind: str = "failed"

    @classmethod
    def of(cls, error: SalusError) -> Failure:
        kind = next((kind for kind, parent in FAILURE_KINDS if isinstance(error, parent)), "failed")
        return cls(why=str(error), kind=kind)


class Request(msgspec.Struct, frozen=True):
    verb: str
    fields: dict[str, Any]


def read_request(message: bytes) -> Request:
    """Parse a line or packet. Raises RequestError if it is not a request. Bytes that are not UTF-8 are replaced."""
    if _is_too_deep(message):
        raise RequestError(f"request refused: more than {DEPTH_MAX} levels of lists and objects")
    try:
        fields = msgspec.json.decode(message.decode(errors="replace"), type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f"request refused: {error}") from error
    verb = fields.pop("verb", "")
    if not isinstance(verb, str):
        raise RequestError("request refused: verb: not a string")
    return Request(verb, fields)


def _is_too_deep(message: bytes) -> bool:
    """Whether lists and objects are nested too deeply, found without recursion and before anything is parsed."""
    if message.count(b"[") + message.count(b"{") <= DEPTH_MAX:
        return False
    depth = 0
    for bracket in _TEXTS.sub(b"", message).translate(None, _NOT_BRACKETS):
        depth += 1 if bracket in _OPENING else -1
        if depth > DEPTH_MAX:
            return True
    return False


def write_request(request: Mapping[str, Any]) -> bytes:
    """A request as a line; `request` has the field `verb`."""
    # Not msgspec: arguments of a command may contain bytes that are not UTF-8.
    return json.dumps(request).encode() + b"\n"


def write_answer(answer: object) -> bytes:
    """An answer as a line; `answer` is a mapping or struct with the field `ok`."""
    return msgspec.json.encode(answer) + b"\n"


def read_answer(message: bytes) -> dict[str, Any]:
    """The fields of an answer. Raises a failure as the error of its kind, and ValueError if it is not an answer."""
    answer = msgspec.json.decode(message, type=dict[str, Any])
    if answer.get("ok") is True:
        return answer
    error = dict(FAILURE_KINDS).get(str(answer.get("kind")), OperatingError)
    raise error(str(answer.get("why") or "no reason given"))


def exchange(connection: socket.socket, server: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Send one request over a stream socket and return the answer. `server` names the other side in errors."""
    return exchange_line(connection, server, write_request(request))


def exchange_line(connection: socket.socket, server: str, line: bytes) -> dict[str, Any]:
    """Like `exchange`, for a request that is already a line."""
    try:
        connection.sendall(line)
        with connection.makefile("rb") as answers:
            line = answers.readline(ANSWER_BYTES_MAX)
    except OSError as error:
        raise UnreachableError(f"{server}: no answer: {error.strerror or error}; is it running?") from error
    if not line.endswith(b"\n"):
        raise UnreachableError(f"{server}: closed the connection without an answer; see its log")
    try:
        return read_answer(line)
    except ValueError as error:
        raise UnreachableError(f"{server}: not an answer of Salus: {error}; check its address") from error
