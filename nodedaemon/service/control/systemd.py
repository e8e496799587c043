"""Tells systemd how the daemon is: datagrams to $NOTIFY_SOCKET, nothing where there is none."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


class Notifier:
    """Sends READY, STATUS, WATCHDOG and STOPPING; a supervisor that went away is no error of ours."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        self._address = environment.get("NOTIFY_SOCKET", "")
        watchdog_microseconds = environment.get("WATCHDOG_USEC", "")
        #: Half of what systemd allows, as it advises itself; None where no watchdog is set.
        self.watchdog_seconds = int(watchdog_microseconds) / 2e6 if watchdog_microseconds.isdigit() else None

    def ready(self, status: str) -> None:
        self._send(f"READY=1\nSTATUS={status}")

    def reloading(self, now_ns: int) -> None:
        self._send(f"RELOADING=1\nMONOTONIC_USEC={now_ns // 1000}")

    def status(self, status: str) -> None:
        self._send(f"STATUS={status}")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        # A leading @ names an abstract socket.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            try:
                sender.sendto(text.encode(), address)
            except OSError:
                return
