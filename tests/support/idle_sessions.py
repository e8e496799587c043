"""Many idle sessions at little cost: one small program forks a process per session, which sends HELLO and sleeps.

usage: python idle_sessions.py CONTROL SOCKET COUNT. Prints `ready` when all have got WELCOME; end of input ends all.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from nodedaemon.wire import framing
from nodedaemon.wire.messages import Hello, Notice, Welcome

if TYPE_CHECKING:
    from tests.support.salusd import Salusd

MIB = 1 << 20


class IdleSessions:
    """Use as a context manager; its sessions are gone afterwards, even if the test fails."""

    def __init__(self, daemon: Salusd, count: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(daemon.control), str(daemon.socket), str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.answer = self._process.stdout.readline()

    def __enter__(self) -> Self:
        assert self.answer == "ready\n", self.answer
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate("")


def _ask(control: str, fields: dict[str, object]) -> dict[str, object]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(control)
        connection.sendall(json.dumps(fields).encode() + b"\n")
        with connection.makefile("r") as answers:
            answer: dict[str, object] = json.loads(answers.readline())
            return answer


def _attach(control: str, path: str) -> socket.socket:
    """Become a job with one session, which lasts as long as the socket."""
    request = {"verb": "run_start", "name": "idle", "persistent_bytes": 2 * MIB, "ephemeral_bytes": 2 * MIB}
    answer = _ask(control, request | {"wait_ms": 60000})
    assert answer["ok"], answer
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.connect(path)
    framing.send(peer, Hello(pid=os.getpid()), [])
    while True:
        packet, descriptors, _, _ = socket.recv_fds(peer, 1024, 3)
        for descriptor in descriptors:
            os.close(descriptor)
        message = framing.decode(packet)
        if not isinstance(message, Notice):
            assert isinstance(message, Welcome), message
            return peer


def _start(control: str, path: str) -> int:
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        is_attached = os.read(reader, 1) == b"."
        os.close(reader)
        assert is_attached, "an idle session was not welcomed"
        return child
    try:
        kept = _attach(control, path)
        os.write(writer, b".")
        os.close(writer)
        while kept:
            signal.pause()
    finally:
        os._exit(1)


def main() -> None:
    control, path, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    children: list[int] = []
    try:
        children.extend(_start(control, path) for _ in range(count))
        print("ready", flush=True)
        sys.stdin.read()
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


if __name__ == "__main__":
    main()
