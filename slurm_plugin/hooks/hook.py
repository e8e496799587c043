"""What Prolog and Epilog share: their options, one bounded exchange with salusd, and the file that marks a job as ours.

Standard library only, Python 3.8 on: these run with the node's own Python, once a job, and a job waits for them. So
only what is loaded at Python's start is imported at the top (argparse, json, socket, pathlib and subprocess cost three
times Python's own start): the rest where it is needed, which for jobs of others is nowhere.
"""

from __future__ import annotations

import os
import sys
import time

RETRY_S = 0.05
PACKET_BYTES_MAX = 16384
DEFAULT_SOCKET = "/run/salus/salusd.sock"


class Options:
    """`--socket PATH --wait SECONDS --connect SECONDS`; what is not understood is told and left at its default."""

    def __init__(self, arguments: list[str], wait_s: float) -> None:
        self.socket = os.environ.get("SALUS_SOCKET") or DEFAULT_SOCKET
        self.wait_s = wait_s
        self.connect_s = 2.0
        for name, value in zip(arguments[::2], arguments[1::2]):  # noqa: B905 - Python 3.8
            if name == "--socket":
                self.socket = value
            elif name == "--wait":
                self.wait_s = float(value)
            elif name == "--connect":
                self.connect_s = float(value)
            else:
                say(f"hook: {name}: unknown option; known are --socket, --wait and --connect")


def say(text: str) -> None:
    print(f"salus: {text}", file=sys.stderr)


def exchange(path: str, request: dict[str, object], connect_s: float, answer_s: float) -> dict[str, object]:
    """Send one request and return the answer; OSError or ValueError where there is none.

    A daemon that restarts right now is worth a moment, one that is down is not: `connect_s` is that moment.
    """
    import json  # noqa: PLC0415 - see the module's docstring
    import socket  # noqa: PLC0415

    deadline = time.monotonic() + connect_s
    while True:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        peer.settimeout(connect_s)
        try:
            peer.connect(path)
            break
        except OSError:
            peer.close()
            if time.monotonic() + RETRY_S > deadline:
                raise
            time.sleep(RETRY_S)
    with peer:
        peer.settimeout(answer_s)
        peer.sendall(json.dumps(request).encode())
        answer = json.loads(peer.recv(PACKET_BYTES_MAX))
    if not isinstance(answer, dict):
        raise ValueError("the answer is no object")
    return answer


def marker_path(socket_path: str, job: str) -> str:
    return os.path.join(os.path.dirname(socket_path), "jobs", job)  # noqa: PTH118, PTH120 - see the module's docstring


def leave_marker(socket_path: str, request: dict[str, object]) -> None:
    import json  # noqa: PLC0415

    marker = marker_path(socket_path, str(request["job"]))
    os.makedirs(os.path.dirname(marker), mode=0o755, exist_ok=True)  # noqa: PTH103, PTH120
    with open(marker + ".new", "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump(request, file)
    os.replace(marker + ".new", marker)  # noqa: PTH105
    remove(ended_path(socket_path, str(request["job"])))


def has_marker(socket_path: str, job: str) -> bool:
    return os.path.exists(marker_path(socket_path, job))  # noqa: PTH110


def ended_path(socket_path: str, job: str) -> str:
    return os.path.join(os.path.dirname(socket_path), "ended", job)  # noqa: PTH118, PTH120


def end_marker(socket_path: str, job: str) -> None:
    """Move a job's file to the ended ones: while slurmd has the id in memory it may start again without a Prolog."""
    ended = ended_path(socket_path, job)
    os.makedirs(os.path.dirname(ended), mode=0o755, exist_ok=True)  # noqa: PTH103, PTH120
    try:  # noqa: SIM105
        os.replace(marker_path(socket_path, job), ended)  # noqa: PTH105
    except FileNotFoundError:
        pass


def remove(path: str) -> None:
    try:  # noqa: SIM105 - contextlib is not loaded
        os.unlink(path)  # noqa: PTH108
    except FileNotFoundError:
        pass
