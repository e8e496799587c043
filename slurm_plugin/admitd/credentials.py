"""Munge credentials: how salus-admitd knows which user on a login node sent a request.

The client runs `munge` over the SHA-256 of the request, so a credential is valid for one request only. The server runs
`unmunge`. munged refuses a credential that it has decoded before and one older than its TTL; `CredentialTTL` may be
shorter.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from nodedaemon.core.errors import OperatingError
from nodedaemon.wire.envelope import NotPermittedError, UnreachableError

MUNGE_TIMEOUT_S = 5.0
CREDENTIAL_BYTES_MAX = 4096
SOCKET_VARIABLE = "SALUS_MUNGE_SOCKET"


def digest(request: Mapping[str, Any]) -> str:
    """The payload of a credential for `request`."""
    bare = {key: value for key, value in request.items() if key != "credential"}
    return hashlib.sha256(json.dumps(bare, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def socket_options() -> list[str]:
    path = os.environ.get(SOCKET_VARIABLE)
    return [f"--socket={path}"] if path else []


def sign(request: Mapping[str, Any]) -> dict[str, Any]:
    """The request with a credential of the calling user."""
    try:
        munge = subprocess.run(
            ["munge", "--no-input", *socket_options(), "--string", digest(request)],
            capture_output=True, text=True, timeout=MUNGE_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnreachableError(f"credential: munge: {error}; is munged running on this host?") from error
    if munge.returncode != 0:
        raise UnreachableError(f"credential: munge: {munge.stderr.strip()}; is munged running on this host?")
    return {**request, "credential": munge.stdout.strip()}


async def verify(request: Mapping[str, Any], ttl_s: float) -> int:
    """The uid of the user who made the request; NotPermittedError if the credential does not prove it."""
    credential = request.get("credential")
    if not isinstance(credential, str) or not 0 < len(credential) <= CREDENTIAL_BYTES_MAX:
        raise NotPermittedError("credential: none in the request; create one with munge")
    process = await asyncio.create_subprocess_exec(
        "unmunge", *socket_options(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(credential.encode()), MUNGE_TIMEOUT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise OperatingError("credential: unmunge: no answer; is munged running on salus-admitd's host?") from None
    if process.returncode != 0:
        raise NotPermittedError(f"credential: {err.decode(errors='replace').strip() or 'refused'}; try again")
    return check(out.decode(errors="replace"), request, ttl_s, time.time())


def check(output: str, request: Mapping[str, Any], ttl_s: float, now_s: float) -> int:
    """The uid in what `unmunge` prints for a good credential: metadata, an empty line, the payload."""
    head, _, payload = output.partition("\n\n")
    uid = re.search(r"^UID:\s+.*\((\d+)\)$", head, re.MULTILINE)
    encoded = re.search(r"^ENCODE_TIME:\s+.*\((\d+)\)$", head, re.MULTILINE)
    if uid is None or encoded is None:
        raise NotPermittedError("credential: unmunge did not name the user; try again")
    if now_s - int(encoded[1]) > ttl_s:
        raise NotPermittedError("credential: too old; try again, and compare the clocks of the hosts")
    if payload.strip() != digest(request):
        raise NotPermittedError("credential: it was made for another request; try again")
    return int(uid[1])
