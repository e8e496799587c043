"""Munge credentials: how salus-admitd knows which user on a login node sent a request.

    MUNGE:AwQDAAD...: {"verb": "status"}

A line is a credential, a blank and a request. The payload of the credential is the SHA-256 of the request's bytes, so a
credential is valid for one request only, and a server can check it before it parses anything. Only SlurmUser can decode
it: a server of another user learns nothing from it. munged refuses a credential that it has decoded before and one
older than its TTL; `CredentialTTL` may be shorter.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import subprocess
import time
from functools import lru_cache
from typing import Any

from nodedaemon.core.errors import OperatingError
from nodedaemon.wire.envelope import NotPermittedError, UnreachableError

MUNGE_TIMEOUT_S = 5.0
CREDENTIAL_BYTES_MAX = 4096
SOCKET_VARIABLE = "SALUS_MUNGE_SOCKET"
_CREDENTIAL = re.compile(rb"MUNGE:[A-Za-z0-9+/=]+:")


def digest(message: bytes) -> str:
    """The payload of a credential for this request."""
    return hashlib.sha256(message).hexdigest()


def socket_options() -> list[str]:
    path = os.environ.get(SOCKET_VARIABLE)
    return [f"--socket={path}"] if path else []


def sign(message: bytes, slurm_user: str) -> bytes:
    """The line for a request: a credential of the calling user, which only SlurmUser can decode, and the request."""
    message = message.rstrip(b"\n")
    words = ["munge", "--no-input", *socket_options(), f"--restrict-uid={_account(slurm_user).pw_uid}"]
    try:
        munge = subprocess.run(
            [*words, "--string", digest(message)], capture_output=True, timeout=MUNGE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnreachableError(f"credential: munge: {error}; is munged running on this host?") from error
    if munge.returncode != 0:
        why = munge.stderr.decode(errors="replace").strip()
        raise UnreachableError(f"credential: munge: {why}; is munged running on this host?")
    return munge.stdout.strip() + b" " + message + b"\n"


def split(line: bytes) -> tuple[bytes, bytes]:
    """The credential and the request of a line. NotPermittedError if it does not begin with a credential."""
    credential, _, message = line.rstrip(b"\n").partition(b" ")
    if len(credential) > CREDENTIAL_BYTES_MAX or not _CREDENTIAL.fullmatch(credential):
        raise NotPermittedError(
            "credential: none before the request; create one with munge, or update the command that sent it"
        )
    return credential, message


def verify(credential: bytes, message: bytes, slurm_user: str, ttl_s: float) -> int:
    """The uid of the user who made the request; NotPermittedError if the credential does not prove it. It blocks."""
    try:
        unmunge = subprocess.run(
            ["unmunge", *socket_options()], input=credential, capture_output=True, timeout=MUNGE_TIMEOUT_S,
            check=False, **decoder(slurm_user),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise OperatingError("credential: unmunge: no answer; is munged running on salus-admitd's host?") from None
    except OSError as error:
        raise OperatingError(
            f"credential: unmunge: {error.strerror or error}; as root, salus-admitd needs CAP_SETUID and CAP_SETGID"
        ) from error
    if unmunge.returncode != 0:
        why = unmunge.stderr.decode(errors="replace").strip()
        raise NotPermittedError(f"credential: {why or 'refused'}; try again")
    return check(unmunge.stdout.decode(errors="replace"), message, ttl_s, time.time())


def decoder(slurm_user: str) -> dict[str, Any]:
    """The options that start `unmunge` as SlurmUser. munged does not make an exception for root."""
    account = _account(slurm_user)
    if os.geteuid() != 0 or account.pw_uid == 0:
        return {}
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def check(output: str, message: bytes, ttl_s: float, now_s: float) -> int:
    """The uid in what `unmunge` prints for a good credential: metadata, an empty line, the payload."""
    head, _, payload = output.partition("\n\n")
    uid = re.search(r"^UID:\s+.*\((\d+)\)$", head, re.MULTILINE)
    encoded = re.search(r"^ENCODE_TIME:\s+.*\((\d+)\)$", head, re.MULTILINE)
    if uid is None or encoded is None:
        raise NotPermittedError("credential: unmunge did not name the user; try again")
    if now_s - int(encoded[1]) > ttl_s:
        raise NotPermittedError("credential: too old; try again, and compare the clocks of the hosts")
    if payload.strip() != digest(message):
        raise NotPermittedError("credential: it was made for another request; try again")
    return int(uid[1])


# A directory service may take long to answer.
@lru_cache(maxsize=8)
def _account(slurm_user: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(slurm_user)
    except KeyError:
        raise OperatingError(
            f"credential: SlurmUser {slurm_user}: this host has no such account; correct SlurmUser in salus.conf"
        ) from None
