"""A watched process without torch: it carries out a list of operations, and its session logs every call."""

from __future__ import annotations

from threading import get_ident
from typing import Any

from hypothesis import strategies as st
from salus_job.lap import Followers
from salus_job.track import BACKWARD_ENTERED, BACKWARD_LEFT, LOADER_ENTERED, LOADER_LEFT, Track
from salus_job.watch import Numbers, Watch


class Module:
    def __init__(self) -> None:
        self.training = True


class Optimizer:
    """Only its identity counts."""


class NoTrack(Track):
    """The rule is always asked."""

    def note(self, *_: Any) -> None:
        pass


class CountingSession:
    def __init__(self) -> None:
        self.log: list[str] = []

    def enter(self) -> int:
        self.log.append("enter")
        return 0

    def boundary(self) -> int:
        self.log.append("boundary")
        return 0

    def leave_entry(self) -> None:
        self.log.append("leave")

    def persist_begin(self) -> None:
        self.log.append("persist")

    def persist_end(self) -> None:
        self.log.append("end")

    def report(self, *_: Any) -> None: ...


class Loop:
    """A watched process that does what a list of operations says."""

    def __init__(self, track: Track, followers: Followers | None = None) -> None:
        self.followers = followers or Followers()
        self.session = CountingSession()
        self.watch = Watch()
        self.watch._track = track
        self.watch._roots, self.watch._optimizers = Numbers(track), Numbers(track)
        self.watch._session, self.watch._is_attached, self.watch._thread_id = self.session, True, get_ident()
        track.place.thread = get_ident()
        self.watch._report_due_ns, self.watch._is_hashed = 1 << 80, True
        self.modules = [Module() for _ in range(3)]
        self.optimizers = [Optimizer() for _ in range(2)]

    def run(self, operations: list[tuple[Any, ...]]) -> list[str]:
        for name, *arguments in operations:
            getattr(self, name)(*arguments)
        assert not self.watch.is_off
        return self.session.log

    def forward(self, module: int, grad: bool, training: bool) -> None:
        root = self.modules[module]
        root.training = training
        assert self.followers.forward(root, grad, training) or self.watch.on_forward_entered(root, grad, ())
        if not self.followers.forward_left(True):
            self.watch.on_forward_left(root, grad, object())

    def backward(self) -> None:
        assert self.followers.event(BACKWARD_ENTERED) or self.watch.on_backward_entered()
        if not self.followers.event(BACKWARD_LEFT):
            self.watch.on_backward_left(True)

    def step(self, optimizer: int) -> None:
        one = self.optimizers[optimizer]
        if not self.followers.step(one):
            self.watch.on_step_entered(one)
        if not self.followers.step_left(one):
            self.watch.on_step_left(one)

    def load(self) -> None:
        assert self.followers.event(LOADER_ENTERED) or self.watch.on_loader_entered()
        if not self.followers.event(LOADER_LEFT):
            self.watch.on_loader_left(True)

    def make(self, optimizer: int) -> None:
        self.optimizers[optimizer] = Optimizer()
        self.watch.on_optimizer_made(self.optimizers[optimizer])

    def replace(self, module: int) -> None:
        self.modules[module] = Module()


OPERATIONS = st.one_of(
    st.tuples(st.just("forward"), st.integers(0, 2), st.booleans(), st.booleans()),
    st.tuples(st.just("backward")),
    st.tuples(st.just("step"), st.integers(0, 1)),
    st.tuples(st.just("load")),
)
RARE = st.one_of(
    OPERATIONS, st.tuples(st.just("make"), st.integers(0, 1)), st.tuples(st.just("replace"), st.integers(0, 2))
)
TRAINING = [("forward", 0, True, True), ("backward",), ("step", 0)]
ITERATIONS = st.one_of(st.just(TRAINING), st.lists(OPERATIONS, min_size=1, max_size=6))
PHASES = st.lists(st.tuples(ITERATIONS, st.integers(1, 12), st.lists(RARE, max_size=2)), min_size=1, max_size=6)
