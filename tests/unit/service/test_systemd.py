"""Notifications to systemd."""

import socket

from nodedaemon.service.control.systemd import Notifier


def test_messages_reach_the_notify_socket_and_the_watchdog_interval_is_halved(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "10000000"})
        assert notifier.watchdog_s == 5.0
        notifier.ready("2 devices")
        notifier.alive()
        notifier.reloading(5_000)
        notifier.stopping()
        seen = [receiver.recv(200) for _ in range(4)]
    assert seen == [b"READY=1\nSTATUS=2 devices", b"WATCHDOG=1", b"RELOADING=1\nMONOTONIC_USEC=5", b"STOPPING=1"]


def test_without_systemd_nothing_is_sent_and_nothing_fails(tmp_path):
    Notifier({}).ready("")
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).alive()
