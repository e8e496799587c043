"""What the Prolog and the Epilog share: options, one bounded exchange with salusd, and the file that marks a Salus job.

Standard library only, for Python 3.8 and later: the node's own Python runs these once per job, and the job waits.
The imports at the top are limited to modules that Python loads at start-up anyway. argparse, json, socket, pathlib and
subprocess would triple the start-up time, so functions import what they need. A job that is not ours never calls them.

The messages are those of nodedaemon/wire/envelope.py; a test compares them.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

RETRY_S = 0.05
PACKET_BYTES_MAX = 16384
DEFAULT_SOCKET = "/run/salus/salusd.sock"


class HookOptions:
    """`--socket PATH --wait SECONDS --connect SECONDS`. An unknown option is reported and ignored."""

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
                say(f"hook: {name}: unknown option; use --socket, --wait and --connect")


def say(text: str) -> None:
    print(f"salus: {text}", file=sys.stderr)


def main(hook: str, run: Callable[[], None]) -> None:
    """Run a hook and exit with 0 whatever happens: a failing hook drains the node."""
    try:
        run()
    except Exception as error:
        say(f"{hook}: {type(error).__name__}: {error}")
    sys.exit(0)


def notify(hook: str, options: HookOptions, request: dict[str, object], answer_s: float) -> None:
    """Send `request` to salusd and report a failure."""
    try:
        why = failure_of(exchange(options.socket, request, options.connect_s, answer_s))
    except (OSError, ValueError) as error:
        say(f"{hook}: job {request['job']}: salusd at {options.socket}: {error}")
        return
    if why:
        say(f"{hook}: job {request['job']}: salusd: {why}")


def exchange(path: str, request: dict[str, object], connect_s: float, answer_s: float) -> bytes:
    """Send one request and return the answer; OSError if there is none.

    A daemon that is restarting has `connect_s` to come back. A daemon that is down must not delay the job any longer.
    """
    import socket  # noqa: PLC0415 - see the module's docstring

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
        peer.sendall(write_request(request))
        return peer.recv(PACKET_BYTES_MAX)


def write_request(request: dict[str, object]) -> bytes:
    import json  # noqa: PLC0415

    return json.dumps(request).encode()


def failure_of(message: bytes) -> str:
    """Why salusd refused, or "" if it did not; ValueError if the message is not an answer."""
    import json  # noqa: PLC0415

    answer = json.loads(message)
    if not isinstance(answer, dict):
        raise ValueError("the answer is not an object")
    return "" if answer.get("ok") is True else str(answer.get("why") or "no reason given")


def marker_path(socket_path: str, folder: str, job: str) -> str:
    return os.path.join(os.path.dirname(socket_path), folder, job)  # noqa: PTH118, PTH120 - see the module's docstring


def leave_marker(socket_path: str, request: dict[str, object]) -> None:
    """Write the job's file, by which the SPANK plugin and salusd recognise a Salus job."""
    job = str(request["job"])
    marker = marker_path(socket_path, "jobs", job)
    os.makedirs(os.path.dirname(marker), mode=0o755, exist_ok=True)  # noqa: PTH103, PTH120
    with open(marker + ".new", "wb", opener=_open_private) as file:
        file.write(write_request(request))
    os.replace(marker + ".new", marker)  # noqa: PTH105
    try:  # noqa: SIM105 - contextlib is not loaded
        os.unlink(marker_path(socket_path, "ended", job))  # noqa: PTH108
    except FileNotFoundError:
        pass


def _open_private(path: str, flags: int) -> int:
    # The SPANK plugin, in the user's process, only looks whether the file exists. What is in it concerns only root.
    return os.open(path, flags, 0o600)


def end_marker(socket_path: str, job: str) -> bool:
    """Move a job's file to `ended`: while slurmd remembers the id, the job may start again without a Prolog.

    False if the job has no file, because it is not a Salus job.
    """
    marker, ended = marker_path(socket_path, "jobs", job), marker_path(socket_path, "ended", job)
    if not os.path.exists(marker):  # noqa: PTH110
        return False
    os.makedirs(os.path.dirname(ended), mode=0o755, exist_ok=True)  # noqa: PTH103, PTH120
    os.replace(marker, ended)  # noqa: PTH105
    return True
