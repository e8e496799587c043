"""Drives random frames, deaths, stops and restarts through the real shell and engine, and checks them after each step.

Children (`session_children`) are the processes, `SalusdRooms` is the daemon. The fuzzer knows the daemon's state, so it
can send right epochs as well as old, future and random ones. Everything that it draws comes from one seeded generator;
what the kernel and threads do in between does not, so a seed repeats a run only roughly.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import signal
import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from nodedaemon.core.errors import PeerError, RequestError
from nodedaemon.core.policies import POLICIES
from nodedaemon.core.types import MIB, SECOND_NS, JobId, SessionId
from nodedaemon.drivers.process import read_stat
from nodedaemon.service.journal.state import JobFacts, ProcessFacts, SessionFacts
from nodedaemon.wire import framing
from nodedaemon.wire.messages import (
    Bye,
    Fault,
    Hello,
    HelloFlag,
    Map,
    Message,
    Overrun,
    ProfileReport,
    Reject,
    Return,
    Started,
    Unmap,
    Unmapped,
    Want,
    Welcome,
)
from nodedaemon.wire.pages import EPOCH_SHIFT, PAGE_BYTES, GatePageOffset, GateState
from tests.support.salusd_rooms import SalusdRooms
from tests.support.session_children import Child, ChildServer

CONFIG = """\
UserRequests=1000000
HangTimeout=1s
UnmapTimeout=50ms
DomainQuantum=1ms
LaneReserve=16M
HelloTimeout=1:00:00
DeviceName=host0 Type=host Memory=64M
"""
CHILDREN_MAX = 6
#: Steps after which all children die and nothing may be left.
EPISODE_STEPS = 800
EMPTY_DEADLINE_S = 20.0
ANSWER_DEADLINE_S = 0.5


@dataclass(eq=False)
class Peer:
    """A child with its connection, its session and the pages that it was sent."""

    child: Child
    job: JobId
    connection: socket.socket | None = None
    session: SessionId | None = None
    pages: list[int] = field(default_factory=list)
    lane: tuple[int, int] = (0, 0)
    is_answered: bool = False

    def disconnect(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def close(self) -> None:
        self.disconnect()
        self.child.close()
        for page in self.pages:
            os.close(page)


class SessionFuzzer:
    """`run` takes steps until a number of frames was sent or the time is up. Failures carry seed and last steps."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.seed = seed
        self.frame_count = 0
        self.steps: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._story: deque[str] = deque(maxlen=40)
        self._job_next = 1
        self._peers: list[Peer] = []
        self._children = ChildServer()
        self.daemon = SalusdRooms(directory, CONFIG)
        self._weights: dict[Callable[[], None], int] = {
            self.want: 120, self.turn: 120, self.mark_page: 40, self.unmapped: 24, self.overrun: 20, self.started: 12,
            self.profile: 8, self.fault: 4, self.bye: 2, self.flip_bits: 3, self.drop_lane: 12, self.scribble: 3,
            self.add_child: 12, self.hello: 20, self.resume: 4, self.disconnect: 3, self.kill: 4, self.stop: 3,
            self.proceed: 6, self.end_job: 1, self.drain: 2, self.set_policy: 2, self.skip_time: 3, self.upkeep: 3,
            self.restart: 1,
        }  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for peer in self._peers:
            peer.close()
        self.daemon.close()
        self._children.__exit__()

    def run(self, frame_count: int, time_s: float = float("inf")) -> None:
        end_s = time.monotonic() + time_s
        while self.frame_count < frame_count and time.monotonic() < end_s:
            try:
                for _ in range(EPISODE_STEPS):
                    self.step()
                self.empty()
            except Exception as error:
                error.add_note(f"seed {self.seed}, {self.frame_count} frames; last steps:\n" + "\n".join(self._story))
                raise

    def step(self) -> None:
        (step,) = self._random.choices(list(self._weights), list(self._weights.values()))
        self.steps[step.__name__] += 1
        self._note(step.__name__)
        step()
        self.daemon.wait_s(0)
        for peer in self._peers:
            self._read(peer)

    def empty(self) -> None:
        """All children die. Then nothing may be left of them."""
        self._note("all die")
        for peer in self._peers:
            peer.close()
        self._peers.clear()
        end_s = time.monotonic() + EMPTY_DEADLINE_S
        daemon = self.daemon
        daemon.do(lambda: [daemon.rooms.control.administration.resume(device) for device in daemon.devices])
        while not (daemon.is_empty() and not daemon.dispatcher.state.jobs):
            assert time.monotonic() < end_s, f"not free: {daemon.dispatcher.engine.snapshot()}"
            for job in list(daemon.dispatcher.state.jobs.values()):
                daemon.wait(daemon.rooms.jobs.registry.end(job, 0))
            daemon.upkeep()
            daemon.wait_s(0.01)

    # Children

    def add_child(self) -> None:
        """A new process: of a new job, or a second one of an earlier job."""
        if len(self._peers) >= CHILDREN_MAX:
            return
        child = self._children.fork()
        registry = self.daemon.rooms.jobs.registry
        others = [job for job in registry.jobs.values() if not job.is_ended]
        if others and self._random.random() < 0.3:
            job = self._random.choice(others)
            self.daemon.do(lambda: registry.add_process(job, child.pid, os.getuid()))
            self._peers.append(Peer(child, job.job))
            return
        stat = read_stat(child.pid)
        assert stat is not None
        number = self._job_next
        self._job_next += 1
        (device,) = self.daemon.devices
        facts = JobFacts(
            job=JobId(str(number)),
            number=number,
            uid=os.getuid(),
            user=self._random.choice(["ada", "ben"]),
            signature="s",
            device=device,
            devices=(device,),
            persistent_bytes=self._random.choice([2, 4, 8]) * MIB,
            ephemeral_bytes=self._random.choice([0, 4, 8, 16, 24]) * MIB,
            is_local=self._random.random() < 0.3,
            kind="shared" if self._random.random() < 0.95 else "exclusive",
            roots=(ProcessFacts(child.pid, stat.start_ticks),),
        )
        job = self.daemon.do(lambda: registry.add(facts))
        if self._random.random() < 0.7:
            self.daemon.do(lambda: registry.open_sessions(job))
        self._peers.append(Peer(child, job.job))

    def kill(self) -> None:
        peer = self._any()
        if peer is not None:
            peer.child.send_signal(signal.SIGKILL)
            if self._random.random() < 0.5:
                self.daemon.wait_s(0.001)
            self._forget(peer)

    def stop(self) -> None:
        peer = self._any()
        if peer is not None:
            peer.child.send_signal(signal.SIGSTOP)

    def proceed(self) -> None:
        for peer in self._peers:
            if peer.child.is_stopped:
                peer.child.send_signal(signal.SIGCONT)

    def disconnect(self) -> None:
        peer = self._any()
        if peer is not None:
            peer.disconnect()

    def drop_lane(self) -> None:
        peer = self._any()
        if peer is not None:
            peer.child.drop()

    def _forget(self, peer: Peer) -> None:
        peer.close()
        self._peers.remove(peer)

    # Frames

    def hello(self) -> None:
        peer = self._any()
        if peer is None or peer.child.is_stopped or (peer.session and self._random.random() < 0.9):
            return
        if peer.connection is None or self._random.random() < 0.1:
            peer.disconnect()
            peer.connection = peer.child.connect(str(self.daemon.socket))
        flags = HelloFlag.UNGATED if self._random.random() < 0.15 else HelloFlag(0)
        sizes = [self._random.choice([0, 0, 0, 8 * MIB, 1 << 62]) for _ in range(2)]
        self._send_hello(
            peer, Hello(declared_persistent_bytes=sizes[0], declared_ephemeral_bytes=sizes[1], flags=flags)
        )

    def resume(self) -> None:
        """As an old session, with right, wrong or no descriptors."""
        peer = self._any()
        if peer is not None and not peer.child.is_stopped:
            self._resume(peer, is_right=self._random.random() < 0.6)

    def _resume(self, peer: Peer, *, is_right: bool) -> None:
        peer.disconnect()
        peer.connection = peer.child.connect(str(self.daemon.socket))
        lent = peer.child.lend()
        pages = peer.pages[:2]
        session = peer.session or SessionId(0)
        if not is_right:
            everything = [*pages, *lent]
            pages = self._random.sample(everything, self._random.randint(0, len(everything)))
            lent_now, session = [], self._random.choice([session, SessionId(0), SessionId(self._random.randint(0, 50))])
        else:
            lent_now = lent
        hello = Hello(session=session, lane=peer.lane[0], lane_epoch=peer.lane[1], flags=HelloFlag.RESUME)
        self._send_hello(peer, hello, [*pages, *lent_now][:3])
        for descriptor in lent:
            os.close(descriptor)

    def _send_hello(self, peer: Peer, hello: Hello, descriptors: list[int] | None = None) -> None:
        peer.is_answered = False
        self._send(peer, hello, descriptors)
        end_s = time.monotonic() + ANSWER_DEADLINE_S * (self._random.random() < 0.8)
        # A session that waits for memory gets its answer later.
        while not peer.is_answered and peer.connection is not None and time.monotonic() < end_s:
            self.daemon.wait_s(0.0005)
            self._read(peer)
            sessions = self.daemon.dispatcher.state.sessions.values()
            if any(one.process.pid == peer.child.pid and not one.view.is_admitted for one in sessions):
                return

    def want(self) -> None:
        peer = self._any(is_welcomed=True)
        if peer is not None:
            self._send(peer, Want(self._epoch(peer, right_share=0.2)))

    def turn(self) -> None:
        """Return a grant, with or without a hand-over, true or not."""
        peer = self._any(is_welcomed=True)
        if peer is None:
            return
        facts, draw = self._facts(peer), self._random.random()
        offer = facts.view.successor_epoch if facts is not None and draw < 0.3 else None
        successor_epoch = offer or (self._random.randint(0, 1 << 40) if draw > 0.97 else 0)
        counts = [self._random.choice([0, 1, 5, (1 << 32) - 1]) for _ in range(2)]
        epoch = self._epoch(peer, right_share=0.8)
        wants_next, is_handed = self._random.random() < 0.7, bool(successor_epoch)
        self._send(peer, Return(epoch, successor_epoch, 0, counts[0], counts[1], int(wants_next), int(is_handed)))

    def started(self) -> None:
        self._send_any(lambda peer: Started(self._epoch(peer)))

    def unmapped(self) -> None:
        self._send_any(lambda peer: Unmapped(*peer.lane))

    def overrun(self) -> None:
        sizes = [self._random.choice([0, 1, 4, 20, 40, 1 << 30]) * MIB for _ in range(2)]
        self._send_any(lambda _: Overrun(sizes[0], sizes[1], self._random.randint(0, 4), self._random.randint(0, 9)))

    def profile(self) -> None:
        sizes = [self._random.choice([0, 3 * MIB, (1 << 64) - 1]) for _ in range(6)]
        self._send_any(lambda _: ProfileReport(*sizes))

    def fault(self) -> None:
        self._send_any(lambda _: Fault(self._random.randint(0, 1), text="x" * self._random.randint(0, 200)))

    def bye(self) -> None:
        self._send_any(lambda _: Bye(self._random.randint(0, 1 << 60)))

    def flip_bits(self) -> None:
        peer = self._any(is_welcomed=True)
        if peer is not None and peer.connection is not None:
            message = self._random.choice(
                [Want(), Return(self._epoch(peer)), Overrun(MIB), Unmapped(*peer.lane), Bye()]
            )
            frame = bytearray(framing.encode(message))
            for _ in range(self._random.randint(1, 4)):
                frame[self._random.randrange(len(frame))] ^= 1 << self._random.randrange(8)
            self.frame_count += 1
            with contextlib.suppress(OSError):
                peer.connection.send(frame)

    # Pages

    def mark_page(self) -> None:
        """Write a state and an epoch that a session could have."""
        peer = self._any()
        if peer is not None and peer.pages:
            word = self._epoch(peer, right_share=0.8) % (1 << 40) << EPOCH_SHIFT | self._random.choice(list(GateState))
            with mmap.mmap(peer.pages[0], PAGE_BYTES) as page:
                offset = GatePageOffset.STATE
                page[offset : offset + 8] = (word % (1 << 64)).to_bytes(8, "little")

    def scribble(self) -> None:
        peer = self._any()
        if peer is not None and peer.pages:
            with mmap.mmap(self._random.choice(peer.pages), PAGE_BYTES) as page:
                page[:] = self._random.randbytes(PAGE_BYTES)

    # The daemon

    def end_job(self) -> None:
        """As the Epilog does. The processes of the job die about the same time."""
        jobs = list(self.daemon.dispatcher.state.jobs.values())
        if not jobs:
            return
        job = self._random.choice(jobs)
        members = [peer for peer in self._peers if peer.job == job.job]
        is_first = self._random.random() < 0.5
        for peer in members if is_first else ():
            self._forget(peer)
        self.daemon.wait(self.daemon.rooms.jobs.registry.end(job, 0))
        for peer in () if is_first else members:
            self._forget(peer)

    def drain(self) -> None:
        administration = self.daemon.rooms.control.administration
        (device,) = self.daemon.devices
        if self._random.random() < 0.4:
            self.daemon.do(lambda: administration.drain(device, "fuzz"))
        else:
            self.daemon.do(lambda: administration.resume(device))

    def set_policy(self) -> None:
        policy = self._random.choice(sorted(POLICIES))
        with contextlib.suppress(RequestError):
            self.daemon.do(lambda: self.daemon.rooms.control.administration.set_policy(policy, self.daemon.devices))

    def skip_time(self) -> None:
        self.daemon.skip_ns(self._random.choice([1_000_000, 100_000_000, 2 * SECOND_NS]))

    def upkeep(self) -> None:
        self.daemon.upkeep()

    def restart(self) -> None:
        self.daemon.crash()
        for peer in self._peers:
            peer.disconnect()
        for peer in list(self._peers):
            if peer.session and not peer.child.is_stopped and self._random.random() < 0.8:
                self._resume(peer, is_right=self._random.random() < 0.9)

    # Parts

    def _note(self, text: str) -> None:
        self._story.append(text)

    def _any(self, *, is_welcomed: bool = False) -> Peer | None:
        peers = [peer for peer in self._peers if not is_welcomed or (peer.session and peer.connection is not None)]
        return self._random.choice(peers) if peers else None

    def _facts(self, peer: Peer) -> SessionFacts | None:
        return self.daemon.dispatcher.state.sessions.get(peer.session or SessionId(0))

    def _epoch(self, peer: Peer, right_share: float = 0.5) -> int:
        """The epoch of its grant, or an old, a future or a random one."""
        facts = self._facts(peer)
        right = facts.view.epoch if facts is not None and facts.view.epoch is not None else 0
        if self._random.random() < right_share:
            return right
        return self._random.choice([max(0, right - 1), right + 1, 0, self._random.getrandbits(64)])

    def _send_any(self, make: Callable[[Peer], Message]) -> None:
        peer = self._any(is_welcomed=True)
        if peer is not None:
            self._send(peer, make(peer))

    def _send(self, peer: Peer, message: Message, descriptors: list[int] | None = None) -> None:
        self._note(f"  session {peer.session} of job {peer.job}, pid {peer.child.pid}: {message}")
        self.frame_count += 1
        if peer.connection is not None:
            with contextlib.suppress(OSError):
                framing.send(peer.connection, message, descriptors or [])

    def _read(self, peer: Peer) -> None:
        """Receive what the daemon has sent. The child gets its lanes; most often it unmaps one when asked."""
        while peer.connection is not None:
            try:
                received = framing.receive(peer.connection)
            except BlockingIOError:
                return
            except (OSError, PeerError):
                received = None
            if received is None:
                peer.disconnect()
                return
            self._on_message(peer, *received)

    def _on_message(self, peer: Peer, message: Message, descriptors: list[int]) -> None:
        match message:
            case Welcome():
                for page in peer.pages:
                    os.close(page)
                peer.pages, peer.session, peer.is_answered = descriptors, SessionId(message.session), True
                return
            case Map():
                peer.child.keep(descriptors)
                peer.lane = (message.lane, message.epoch)
            case Unmap() if self._random.random() < 0.8:
                peer.child.drop()
                self._send(peer, Unmapped(message.lane, message.epoch))
            case Reject():
                peer.is_answered = True
        for descriptor in descriptors:
            os.close(descriptor)
