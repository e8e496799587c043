"""Which descriptors count as memory. tests/security/test_passed_descriptors.py tests the rest."""

import os
import socket

from nodedaemon.wire.guarded_socket import is_memory


def test_only_memory_and_devices_that_are_open_count_as_memory(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "file").write_text("x")
    ours, theirs = socket.socketpair()
    opened = {
        "memfd": os.memfd_create("x"),
        "sealed memfd": os.memfd_create("x", os.MFD_ALLOW_SEALING),
        "device": os.open("/dev/null", os.O_RDWR),
        "socket": ours.detach(),
        "file": os.open(tmp_path / "file", os.O_RDONLY),
        "fifo": os.open(fifo, os.O_RDONLY | os.O_NONBLOCK),
        "path of a device": os.open("/dev/null", os.O_PATH),
        "directory": os.open(tmp_path, os.O_RDONLY),
    }
    theirs.close()
    try:
        assert [name for name, one in opened.items() if is_memory(one)] == ["memfd", "sealed memfd", "device"]
    finally:
        for descriptor in opened.values():
            os.close(descriptor)
