"""Reports a fault of Salus to the daemon, not in the output of the job.

Standard error belongs to the job, so Salus writes there only if `SALUS_VERBOSE` is set. A session reports its faults
itself. Without a session (before it exists, or if libsalus cannot be loaded) this module sends a FAULT as the only
frame of a connection. It reports one fault per process, because later faults follow from the first.
"""

import os
import sys

TIMEOUT_S = 0.5

_is_reported = False


def warn(text: str) -> None:
    if os.environ.get("SALUS_VERBOSE", "") not in ("", "0"):
        # A reason from the daemon may contain a name that another user chose.
        shown = "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
        sys.stderr.write("salus: %s\n" % shown)


def report(text: str) -> None:
    """Never raises, and waits for TIMEOUT_S at most."""
    global _is_reported
    path = os.environ.get("SALUS_SOCKET", "")
    if _is_reported or not path:
        return
    _is_reported = True
    import contextlib
    import socket
    import struct

    from salus_job import layouts as wire

    layout = struct.Struct(wire.FAULT_FORMAT)
    content = text.encode("utf-8", "replace")[: wire.TEXT_BYTES - 1]
    frame = layout.pack(wire.MAGIC, wire.WIRE_VERSION, wire.FAULT, layout.size, 0, 1, 0, content)
    # There may be no daemon to report to.
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(TIMEOUT_S)
        connection.connect(path)
        connection.send(frame)


def warn_without_salus(text: str) -> None:
    warn("%s; the job continues without Salus" % text)
