"""A hostile session: it sends false or malformed frames on command. One command per line, one JSON answer per line.

It is a separate process, run as another user with `--uid`, because salusd identifies sessions through the kernel.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import signal
import socket
import sys
import tempfile
import threading
from pathlib import Path

from nodedaemon.wire import framing
from nodedaemon.wire.messages import (
    Allow,
    Deny,
    Hello,
    HelloFlag,
    Map,
    Overrun,
    ProfileReport,
    Return,
    Unmap,
    Unmapped,
    Want,
)
from tests.support.worker import MIB, start_run


class Rogue:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection.settimeout(30)
        self.pages: list[int] = []
        self.lanes: list[tuple[int, int, int]] = []
        self.maps: list[mmap.mmap] = []
        #: Pipes whose end a child waits for.
        self.children: list[int] = []

    def run(self, **fields: object) -> dict[str, object]:
        sizes = {"persistent_bytes": self.arguments.persistent * MIB, "ephemeral_bytes": self.arguments.ephemeral * MIB}
        return start_run(self.arguments.control, {"name": "rogue", "wait_ms": 30000, **sizes, **fields})

    def hello(self, flags: int = 0) -> dict[str, object]:
        self.connection.connect(self.arguments.socket)
        framing.send(self.connection, Hello(flags=flags))
        message, self.pages = framing.receive(self.connection)
        return {"kind": message.kind.name, "text": getattr(message, "text", "")}

    def hello_of_a_child(self) -> dict[str, object]:
        """Attach a second process of the same job. It ends with this one."""
        ours, theirs = os.pipe()
        if os.fork() == 0:
            os.close(theirs)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.connect(self.arguments.socket)
                framing.send(connection, Hello())
                framing.receive(connection)
                os.read(ours, 1)
                os._exit(0)
        os.close(ours)
        self.children.append(theirs)
        return {}

    def want(self) -> dict[str, object]:
        framing.send(self.connection, Want())
        return {}

    def map_lane(self) -> dict[str, object]:
        """Wait for MAP, map the lane, and never give up the mapping or the descriptor."""
        while True:
            message, descriptors = framing.receive(self.connection)
            if isinstance(message, Map):
                self.lanes.append((message.lane, message.epoch, descriptors[0]))
                self.maps.append(mmap.mmap(descriptors[0], message.lane_bytes))
                return {"lane": message.lane, "epoch": message.epoch, "bytes": message.lane_bytes}

    def overrun(self, persistent: int, ephemeral: int = 0) -> dict[str, object]:
        """Ask for totals in MiB, and wait for the answer."""
        framing.send(self.connection, Overrun(persistent * MIB, ephemeral * MIB, 1, 1))
        while True:
            message, _ = framing.receive(self.connection)
            if isinstance(message, (Allow, Deny)):
                return {"kind": message.kind.name}

    def resume_stray(self, lane: int) -> dict[str, object]:
        """Claim to be a session that the daemon has forgotten, with a lane of that many MiB."""
        self.pages = [os.memfd_create(name) for name in ("gate", "turn", "lane")]
        os.posix_fallocate(self.pages[2], 0, lane * MIB)
        self.connection.connect(self.arguments.socket)
        framing.send(self.connection, Hello(session=10**6, flags=HelloFlag.RESUME), self.pages)
        message, _ = framing.receive(self.connection)
        return {"kind": message.kind.name}

    def scribble(self) -> dict[str, object]:
        """Fill every page that it has with garbage."""
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

    def answer_unmap(self) -> dict[str, object]:
        """Wait for UNMAP and answer it, as a good session does."""
        while True:
            message, _ = framing.receive(self.connection)
            if isinstance(message, Unmap):
                framing.send(self.connection, Unmapped(message.lane, message.epoch))
                return {}

    def lie_return(self) -> dict[str, object]:
        """Send RETURN with a hand-over that did not happen and more iterations than are possible."""
        for epoch in range(1, 20):
            framing.send(self.connection, Return(epoch, 0, 2**63, 2**32 - 1, 2**32 - 1, 1, 0))
        return {}

    def lie_profile(self, iteration_ns: int = 2**64 - 1) -> dict[str, object]:
        """Report more memory, and longer iterations, than are possible."""
        huge = 2**64 - 1
        framing.send(self.connection, ProfileReport(huge, huge, huge, huge, iteration_ns, huge))
        return {}

    def lie_leave(self) -> dict[str, object]:
        """Return its grant, whatever the epoch is, and do not ask for another."""
        for epoch in range(1, 20):
            framing.send(self.connection, Return(epoch))
        return {}

    def lie_handover(self) -> dict[str, object]:
        framing.send(self.connection, Return(1, 2, 0, 1, 1, 1, 1))
        return {}

    def seize(self) -> dict[str, object]:
        """Try to resize the lane, which its seals forbid."""
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

    def drop_lane(self) -> dict[str, object]:
        """Unmap the lane and close its descriptor without reporting it to the daemon."""
        for mapped in self.maps:
            mapped.close()
        for _, _, descriptor in self.lanes:
            os.close(descriptor)
        self.maps, self.lanes = [], []
        return {}

    def give_lane(self, address: str) -> dict[str, object]:
        """Send the lane's descriptor to a process without a session, at an abstract address."""
        with socket.socket(socket.AF_UNIX) as helper:
            helper.connect(f"\0{address}")
            socket.send_fds(helper, [b"."], [descriptor for _, _, descriptor in self.lanes])
            helper.recv(1)
        return {}

    def hide_lane(self) -> dict[str, object]:
        """Keep the lane's descriptor in a socket of its own, where no list of descriptors shows it."""
        self.hidden = socket.socketpair()
        socket.send_fds(self.hidden[0], [b"."], [descriptor for _, _, descriptor in self.lanes])
        return self.drop_lane()

    def fork_helper(self) -> dict[str, object]:
        """A child that keeps the mapping."""
        pid = os.fork()
        if pid == 0:
            self.connection.close()
            signal.pause()
        return {"pid": pid}

    def map_odd_file(self) -> dict[str, object]:
        """Map a file whose name is not text in any encoding."""
        with tempfile.TemporaryDirectory() as directory:
            path = os.fsencode(directory) + b"/\xff\r\xfe"
            Path(os.fsdecode(path)).write_bytes(b".")
            with Path(os.fsdecode(path)).open("rb") as file:
                self.odd = mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ)
        return {}

    def enter_cgroup(self, path: str) -> dict[str, object]:
        Path(path).mkdir(parents=True)
        (Path(path) / "cgroup.procs").write_text(str(os.getpid()))
        return {"cgroup": Path("/proc/self/cgroup").read_bytes().decode(errors="backslashreplace")}

    def end_main_thread(self) -> dict[str, object]:
        """Another thread reads the next commands. This one ends by a system call that does not end the process."""
        threading.Thread(target=serve, args=[self]).start()
        print(json.dumps({}), flush=True)
        exit_number = {"x86_64": 60}.get(os.uname().machine, 93)
        ctypes.CDLL(None).syscall(exit_number, 0)
        return {}

    def stop_self(self) -> dict[str, object]:
        print(json.dumps({}), flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        return {}


def serve(rogue: Rogue) -> None:
    # Not `for line in sys.stdin`: that reads ahead, and another thread may continue.
    while line := sys.stdin.readline():
        name, _, argument = line.strip().partition(" ")
        answer = getattr(rogue, name)(**(json.loads(argument) if argument else {}))
        if name != "stop_self":
            print(json.dumps(answer), flush=True)


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
    serve(Rogue(arguments))


if __name__ == "__main__":
    main()
