"""A session that speaks the protocol by hand and lies on command: one command per line, one JSON answer per line.

It is a process of its own, run by another user with `--uid`, because the daemon identifies sessions through the kernel.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import signal
import socket
import sys

from nodedaemon.wire import framing
from nodedaemon.wire.messages import Hello, Map, Return, Unmapped, Want
from tests.support.worker import MIB, start_run


class Rogue:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection.settimeout(30)
        self.pages: list[int] = []
        self.lanes: list[tuple[int, int, int]] = []
        self.maps: list[mmap.mmap] = []

    def run(self, **fields: object) -> dict[str, object]:
        sizes = {"persistent_bytes": self.arguments.persistent * MIB, "ephemeral_bytes": self.arguments.ephemeral * MIB}
        return start_run(self.arguments.control, {"name": "rogue", "wait_ms": 30000, **sizes, **fields})

    def hello(self) -> dict[str, object]:
        self.connection.connect(self.arguments.socket)
        framing.send(self.connection, Hello())
        message, self.pages = framing.receive(self.connection)
        return {"kind": message.kind.name, "text": getattr(message, "text", "")}

    def want(self) -> dict[str, object]:
        framing.send(self.connection, Want())
        return {}

    def take_lane(self) -> dict[str, object]:
        """Wait for LANE, map it, and keep both mapping and descriptor for good."""
        while True:
            message, descriptors = framing.receive(self.connection)
            if isinstance(message, Map):
                self.lanes.append((message.lane, message.epoch, descriptors[0]))
                self.maps.append(mmap.mmap(descriptors[0], message.lane_bytes))
                return {"lane": message.lane, "epoch": message.epoch, "bytes": message.lane_bytes}

    def scribble(self) -> dict[str, object]:
        """Garbage into every page that it has."""
        for lane in self.maps:
            lane[:] = os.urandom(4096) * (len(lane) // 4096)
        for descriptor in self.pages:
            with mmap.mmap(descriptor, 4096) as page:
                page[:] = os.urandom(4096)
        return {}

    def lie_unmapped(self) -> dict[str, object]:
        for lane, epoch, _ in self.lanes:
            framing.send(self.connection, Unmapped(lane, epoch))
        return {}

    def lie_return(self) -> dict[str, object]:
        """Claims in every field: a hand-over that never was, more iterations than there can be."""
        for epoch in range(1, 20):
            framing.send(self.connection, Return(epoch, 0, 2**63, 2**32 - 1, 2**32 - 1, 1, 0))
        return {}

    def lie_leave(self) -> dict[str, object]:
        """Gives its grant back, whatever its epoch is, and wants no other."""
        for epoch in range(1, 20):
            framing.send(self.connection, Return(epoch))
        return {}

    def lie_handover(self) -> dict[str, object]:
        framing.send(self.connection, Return(1, 2, 0, 1, 1, 1, 1))
        return {}

    def seize(self) -> dict[str, object]:
        """Try what seals forbid."""
        failed = []
        for _, _, descriptor in self.lanes:
            for size in (0, 1 << 30):
                try:
                    os.ftruncate(descriptor, size)
                except OSError as error:
                    failed.append(error.errno)
        return {"failed": failed}

    def flood(self) -> dict[str, object]:
        try:
            for _ in range(100_000):
                framing.send(self.connection, Want())
        except OSError:
            return {"is_cut_off": True}
        return {"is_cut_off": False}

    def disconnect(self) -> dict[str, object]:
        self.connection.close()
        return {}

    def stop_self(self) -> dict[str, object]:
        print(json.dumps({}), flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        return {}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--persistent", type=int, default=4)
    parser.add_argument("--ephemeral", type=int, default=8)
    parser.add_argument("--uid", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.uid:
        os.setresgid(arguments.uid, arguments.uid, arguments.uid)
        os.setresuid(arguments.uid, arguments.uid, arguments.uid)
    rogue = Rogue(arguments)
    for line in sys.stdin:
        name, _, argument = line.strip().partition(" ")
        answer = getattr(rogue, name)(**(json.loads(argument) if argument else {}))
        if name != "stop_self":
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
