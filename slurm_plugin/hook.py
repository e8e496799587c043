"""What Prolog and Epilog share: one bounded exchange with salusd, and the file that marks a job as ours.

Standard library only, Python 3.8 on: these run with the node's own Python, once a job.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from typing import Any

RETRY_S = 0.05
PACKET_BYTES_MAX = 16384
DEFAULT_SOCKET = "/run/salus/salusd.sock"


def say(text: str) -> None:
    print(f"salus: {text}", file=sys.stderr)


def connect(path: str, wait_s: float) -> socket.socket:
    """Connect within `wait_s`: a daemon that restarts right now is worth a moment, one that is down is not."""
    deadline = time.monotonic() + wait_s
    while True:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        peer.settimeout(wait_s)
        try:
            peer.connect(path)
        except OSError:
            peer.close()
            if time.monotonic() + RETRY_S > deadline:
                raise
            time.sleep(RETRY_S)
        else:
            return peer


def exchange(path: str, request: dict[str, Any], connect_s: float, answer_s: float) -> dict[str, Any]:
    """Send one request and return the answer; OSError or ValueError where there is none."""
    with connect(path, connect_s) as peer:
        peer.settimeout(answer_s)
        peer.sendall(json.dumps(request).encode())
        answer = json.loads(peer.recv(PACKET_BYTES_MAX))
    if not isinstance(answer, dict):
        raise ValueError("the answer is no object")
    return answer


def marker_path(socket_path: str, job: str) -> str:
    return os.path.join(os.path.dirname(socket_path), "jobs", job)  # noqa: PTH118, PTH120 - see the module's docstring


def leave_marker(socket_path: str, request: dict[str, Any]) -> None:
    marker = marker_path(socket_path, str(request["job"]))
    os.makedirs(os.path.dirname(marker), mode=0o755, exist_ok=True)  # noqa: PTH103, PTH120
    with open(marker + ".new", "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump(request, file)
    os.replace(marker + ".new", marker)  # noqa: PTH105


def has_marker(socket_path: str, job: str) -> bool:
    return os.path.exists(marker_path(socket_path, job))  # noqa: PTH110


def remove_marker(socket_path: str, job: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(marker_path(socket_path, job))  # noqa: PTH108
