"""Reports the daemon's state to systemd: datagrams to $NOTIFY_SOCKET, and nothing if that is not set."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


class Notifier:
    """Sends READY, RELOADING, WATCHDOG and STOPPING. A failure to send is ignored."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        self._address = environment.get("NOTIFY_SOCKET", "")
        watchdog_us = environment.get("WATCHDOG_USEC", "")
        #: Half of the watchdog's time, as systemd recommends; None without a watchdog.
        self.watchdog_s = int(watchdog_us) / 2e6 if watchdog_us.isdigit() else None

    def ready(self, status: str) -> None:
        self._send(f"READY=1\nSTATUS={status}")

    def reloading(self, now_ns: int) -> None:
        self._send(f"RELOADING=1\nMONOTONIC_USEC={now_ns // 1000}")

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
