"""salusd takes a grant back at the moment at which the session starts it: the session runs, and returns it in order."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

LIBSALUS = Path(__file__).parents[3] / "nodedaemon" / "job" / "libsalus"
POINTS = re.findall(r"^\s+POINT_(\w+),", (LIBSALUS / "point.h").read_text(), re.MULTILINE)

# Both sides in one process: a thread is salusd. The arguments are a socket path, the library and the number of a point.
PROGRAM = """
import ctypes, os, socket, sys, threading
from nodedaemon.service.sessions.gate_memory import GatePage, TurnPage
from nodedaemon.wire import framing
from nodedaemon.wire.messages import Map, Welcome
from nodedaemon.wire.pages import GatePageOffset
LANE_BYTES = 1 << 20
gate, turn = GatePage.create(1), TurnPage.create()
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1]); listener.listen()
kinds = []

def grant(epoch):
    gate.arm(1, 1, epoch, None); gate.start(epoch); turn.ring(0)

def serve():
    connection, _ = listener.accept()
    framing.receive(connection)
    welcome = Welcome(1, LANE_BYTES, 1 << 40, LANE_BYTES)
    framing.send(connection, welcome, [gate.fd, turn.fd])
    lane = os.memfd_create("lane"); os.ftruncate(lane, LANE_BYTES)
    framing.send(connection, Map(1, 1, LANE_BYTES, LANE_BYTES), [lane])
    while (received := framing.receive(connection)) is not None:
        kinds.append(type(received[0]).__name__)
        if kinds[-1] in ("Want", "Return"): grant(10 + len(kinds))

class Options(ctypes.Structure):
    _fields_ = [("size_bytes", ctypes.c_uint32), ("rest", ctypes.c_char * 100)]

threading.Thread(target=serve, daemon=True).start()
library = ctypes.CDLL(sys.argv[2])
options = Options(ctypes.sizeof(Options))
assert library.salus_hello(sys.argv[1].encode(), ctypes.byref(options), None) == 0
# The first half of a disarm: salusd clears the lease after the session has looked at it for the last time.
clear = ctypes.CFUNCTYPE(None)(lambda: gate._words.store(GatePageOffset.LEASE, 0))
library.salus_point_call(int(sys.argv[3]), clear)
print(library.salus_boundary(), library.salus_boundary(), *kinds)
"""


def test_a_grant_whose_lease_is_cleared_while_it_starts_is_returned_at_the_next_boundary(tmp_path: Path) -> None:
    library = LIBSALUS / "build" / "libsalus-points.so"
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "s.sock"), str(library), str(POINTS.index("STARTED"))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.stdout.split() == ["1", "1", "Want", "Return"], result.stderr
