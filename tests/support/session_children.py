"""Children with real pids for tests that drive the rooms of salusd in this process.

A child connects to the session socket and hands the connection to the test, so the kernel shows the child as the peer
(SO_PEERCRED, pidfd) while the test sends the frames. It also keeps the lanes that the test gets for it.

Children are forked by a small program, because this process has threads.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from typing import Self

_PROGRAM = """
import os, signal, socket, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)

def serve(control):
    kept = []
    while True:
        command, received, _, _ = socket.recv_fds(control, 256, 4)
        name, _, argument = command.partition(b" ")
        kept += received
        if name == b"connect":
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
                try:
                    peer.connect(argument)
                except OSError:
                    control.send(b"failed")
                else:
                    socket.send_fds(control, [b"connected"], [peer.fileno()])
        elif name == b"lend":
            socket.send_fds(control, [b"lent"], kept[-1:])
        elif name == b"drop":
            for descriptor in kept:
                os.close(descriptor)
            kept.clear()
        elif not command:
            os._exit(0)

server = socket.socket(fileno=int(sys.argv[1]))
while True:
    command, received, _, _ = socket.recv_fds(server, 256, 1)
    if not command:
        os._exit(0)
    pid = os.fork()
    if pid == 0:
        server.close()
        serve(socket.socket(fileno=received[0]))
    os.close(received[0])
    server.send(str(pid).encode())
"""


class Child:
    """One process. Its answers are waited for, so ask nothing of a stopped one."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self.is_stopped = False
        self._control = control
        self._pidfd = os.pidfd_open(pid)

    def connect(self, path: str) -> socket.socket | None:
        """Connect to the socket at `path`; None if the child is gone or nobody listens there."""
        received = self._ask(f"connect {path}".encode())
        if not received:
            return None
        connection = socket.socket(fileno=received[0])
        connection.setblocking(False)
        return connection

    def lend(self) -> list[int]:
        """A descriptor of the lane that it keeps, if any. The caller closes it."""
        return self._ask(b"lend")

    def keep(self, descriptors: list[int]) -> None:
        with contextlib.suppress(OSError):
            socket.send_fds(self._control, [b"keep"], descriptors)

    def drop(self) -> None:
        with contextlib.suppress(OSError):
            self._control.send(b"drop")

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)
        self.is_stopped = number == signal.SIGSTOP

    def close(self) -> None:
        self.send_signal(signal.SIGKILL)
        self._control.close()
        os.close(self._pidfd)

    def _ask(self, command: bytes) -> list[int]:
        try:
            self._control.send(command)
            return socket.recv_fds(self._control, 256, 1)[1]
        except OSError:
            return []


class ChildServer:
    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-S", "-c", _PROGRAM, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        self._server = ours

    def fork(self) -> Child:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._server, [b"fork"], [theirs.fileno()])
        return Child(int(self._server.recv(32)), ours)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        self._process.wait(30)
