"""Where something of ours failed: the daemon learns why, the job's output stays its own.

A job's standard error belongs to the job, so nothing is written there unless `SALUS_VERBOSE` asks for it. The daemon is
told by the session where there is one; before that, and where libsalus itself cannot be loaded, by a FAULT as the only
frame of a connection. One complaint a process: what follows from the first is no news.
"""

import os
import sys

TIMEOUT_S = 0.5

_told = False


def is_verbose() -> bool:
    return os.environ.get("SALUS_VERBOSE", "") not in ("", "0")


def warn(text: str) -> None:
    """For the user who asked to be told."""
    if is_verbose():
        sys.stderr.write("salus: %s\n" % text)


def tell_daemon(text: str) -> bool:
    """Without a session. Never raises and never waits for long; false where nobody listens or it was told before."""
    global _told
    path = os.environ.get("SALUS_SOCKET", "")
    if _told or not path:
        return False
    _told = True
    import socket
    import struct

    from salus_job import layouts as wire

    layout = struct.Struct(wire.FAULT_FORMAT)
    content = text.encode("utf-8", "replace")[: wire.TEXT_BYTES - 1]
    frame = layout.pack(wire.MAGIC, wire.WIRE_VERSION, wire.FAULT, layout.size, 0, 1, 0, content)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(TIMEOUT_S)
            connection.connect(path)
            connection.send(frame)
    except OSError:
        return False
    return True


def give_up(text: str) -> None:
    """The job goes on as if Salus were absent."""
    warn("%s; the job goes on without Salus" % text)
    tell_daemon(text)
