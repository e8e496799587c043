"""Who asks from a login node: a munge credential over the request, made by `munge` and checked by `unmunge`.

The payload is the SHA-256 of the request, so that a credential serves one request only; munged itself refuses one that
it has decoded before, and one that is older than its TTL. Ours may be shorter (`CredentialTTL`).
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

from nodedaemon.core.errors import OperatingError, PeerError

MUNGE_TIMEOUT_S = 5.0
CREDENTIAL_BYTES_MAX = 4096
SOCKET_VARIABLE = "SALUS_MUNGE_SOCKET"


def digest(request: Mapping[str, Any]) -> str:
    """What a credential for `request` must hold."""
    bare = {key: value for key, value in request.items() if key != "credential"}
    return hashlib.sha256(json.dumps(bare, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def socket_options() -> list[str]:
    named = os.environ.get(SOCKET_VARIABLE)
    return [f"--socket={named}"] if named else []


def sign(request: Mapping[str, Any]) -> dict[str, Any]:
    """The request with a credential of the calling user."""
    try:
        made = subprocess.run(
            ["munge", "--no-input", *socket_options(), "--string", digest(request)],
            capture_output=True, text=True, timeout=MUNGE_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OperatingError(f"credential: munge: {error}; is munged running on this host?") from error
    if made.returncode != 0:
        raise OperatingError(f"credential: munge: {made.stderr.strip()}; is munged running on this host?")
    return {**request, "credential": made.stdout.strip()}


async def verify(request: Mapping[str, Any], ttl_s: float) -> int:
    """The uid that made the request; PeerError where its credential is not good for it."""
    credential = request.get("credential")
    if not isinstance(credential, str) or not 0 < len(credential) <= CREDENTIAL_BYTES_MAX:
        raise PeerError("credential: none in the request; make one with munge")
    process = await asyncio.create_subprocess_exec(
        "unmunge", *socket_options(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(credential.encode()), MUNGE_TIMEOUT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise OperatingError("credential: unmunge: no answer; is munged running beside salus-admitd?") from None
    if process.returncode != 0:
        raise PeerError(f"credential: {err.decode(errors='replace').strip() or 'refused'}; ask again")
    return check(out.decode(errors="replace"), request, ttl_s, time.time())


def check(told: str, request: Mapping[str, Any], ttl_s: float, now_s: float) -> int:
    """Read what `unmunge` printed of a good credential: metadata, an empty line, the payload."""
    head, _, payload = told.partition("\n\n")
    uid = re.search(r"^UID:\s+.*\((\d+)\)$", head, re.MULTILINE)
    encoded = re.search(r"^ENCODE_TIME:\s+.*\((\d+)\)$", head, re.MULTILINE)
    if uid is None or encoded is None:
        raise PeerError("credential: unmunge said nothing of its maker; ask again")
    if now_s - int(encoded[1]) > ttl_s:
        raise PeerError("credential: too old; ask again, and compare the clocks of the hosts")
    if payload.strip() != digest(request):
        raise PeerError("credential: made for another request; ask again")
    return int(uid[1])
