"""A watched process without a framework: it carries out a list of operations, and its session logs every call."""

from __future__ import annotations

from functools import partial
from threading import get_ident
from typing import Any

from hypothesis import strategies as st
from salus_job.follower import LoopFollower
from salus_job.watch import Watch

Operation = tuple[Any, ...]
Phase = tuple[list[Operation], int, list[Operation]]


class Module:
    def __init__(self) -> None:
        self.training = True


class Optimizer:
    """Only its identity counts."""


class LoggingSession:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.leave_entry = partial(self.log.append, "leave")
        self.persist_begin = partial(self.log.append, "persist begin")
        self.persist_end = partial(self.log.append, "persist end")
        self.bye = self.report = lambda *_: None

    def enter(self) -> int:
        self.log.append("enter")
        return 0

    def boundary(self) -> int:
        self.log.append("boundary")
        return 0


class WatchedLoop:
    """Without `library`, no loop is followed and the rule is always asked."""

    def __init__(self, library: Any = None) -> None:
        self.session = LoggingSession()
        self.watch = Watch()
        self.watch._use_session(self.session)  # type: ignore[arg-type]
        self.watch.profile._report_due_ns, self.watch.profile._is_model_hashed = 1 << 80, True
        self.follower = self.watch.follower = LoopFollower(library)
        self.watch._is_attached, self.watch._thread_id = True, get_ident()
        # A report is always due for libsalus, so that the session sees every boundary.
        self.follower.use_thread(get_ident())
        self.watch.follower.set_report_due = lambda _: None  # type: ignore[method-assign]
        self.modules = [Module() for _ in range(3)]
        self.optimizers = [Optimizer() for _ in range(2)]

    def run(self, operations: list[Operation]) -> list[str]:
        for name, *arguments in operations:
            getattr(self, name)(*arguments)
        assert not self.watch.is_off
        return self.session.log

    def forward(self, module: int, grad: bool, training: bool) -> None:
        root = self.modules[module]
        root.training = training
        expected = self.follower.forward_entered(root, grad, training)
        assert expected or self.watch.on_forward_entered(root, grad, training, ())
        if not self.follower.forward_left(True):
            self.watch.on_forward_left(root, grad, True)

    def backward(self) -> None:
        assert self.follower.backward_entered() or self.watch.on_backward_entered()
        if not self.follower.backward_left():
            self.watch.on_backward_left()

    def step(self, number: int) -> None:
        optimizer = self.optimizers[number]
        if not self.follower.step_entered(optimizer):
            self.watch.on_step_entered(optimizer)
        if not self.follower.step_left(optimizer):
            self.watch.on_step_left(optimizer)

    def load(self) -> None:
        assert self.follower.loader_entered() or self.watch.on_loader_entered()
        if not self.follower.loader_left():
            self.watch.on_loader_left()

    def make(self, number: int) -> None:
        self.optimizers[number] = Optimizer()
        self.watch.on_optimizer_made(self.optimizers[number])

    def replace(self, number: int) -> None:
        self.modules[number] = Module()


OPERATIONS = st.one_of(
    st.tuples(st.just("forward"), st.integers(0, 2), st.booleans(), st.booleans()),
    st.tuples(st.just("backward")),
    st.tuples(st.just("step"), st.integers(0, 1)),
    st.tuples(st.just("load")),
)
RARE = st.one_of(
    OPERATIONS, st.tuples(st.just("make"), st.integers(0, 1)), st.tuples(st.just("replace"), st.integers(0, 2))
)
TRAINING: list[Operation] = [("forward", 0, True, True), ("backward",), ("step", 0)]
FUNCTIONAL: list[Operation] = [("backward",), ("step", 0)]
ITERATIONS = st.one_of(st.just(TRAINING), st.just(FUNCTIONAL), st.lists(OPERATIONS, min_size=1, max_size=6))
PHASES = st.lists(st.tuples(ITERATIONS, st.integers(1, 12), st.lists(RARE, max_size=2)), min_size=1, max_size=6)
