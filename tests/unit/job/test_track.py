"""A loop that repeats itself is followed without asking the rule, and its boundaries are those that the rule gives."""

from threading import get_ident
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from salus_job.boundary import BoundaryRule
from salus_job.track import MISSES_BEFORE_REST, Track
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

    def __init__(self, track: Track) -> None:
        self.grad = True
        self.session = CountingSession()
        self.watch = Watch()
        self.watch._track = track
        self.watch._roots, self.watch._optimizers = Numbers(track), Numbers(track)
        self.watch._session, self.watch._is_attached, self.watch._thread_id = self.session, True, get_ident()
        self.watch._is_grad_enabled = lambda: self.grad
        self.watch._report_due_ns, self.watch._is_hashed = 1 << 80, True
        self.modules = [Module() for _ in range(3)]
        self.optimizers = [Optimizer() for _ in range(2)]

    def run(self, operations: list[tuple[Any, ...]]) -> list[str]:
        for name, *arguments in operations:
            getattr(self, name)(*arguments)
        assert not self.watch.is_off
        return self.session.log

    def forward(self, module: int, grad: bool, training: bool) -> None:
        self.grad, self.modules[module].training = grad, training
        self.watch.on_forward_left(self.watch.on_forward_entered(self.modules[module], ()), object())

    def backward(self) -> None:
        self.watch.on_backward_left(self.watch.on_backward_entered())

    def step(self, optimizer: int) -> None:
        self.watch.on_step_entered(self.optimizers[optimizer])
        self.watch.on_step_left(self.optimizers[optimizer])

    def load(self) -> None:
        self.watch.on_loader_left(self.watch.on_loader_entered())

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


@given(PHASES)
def test_what_is_told_does_not_depend_on_the_track(
    phases: list[tuple[list[tuple[Any, ...]], int, list[tuple[Any, ...]]]],
) -> None:
    operations = [one for iteration, count, extra in phases for one in [*iteration * count, *extra]]
    assert Loop(Track()).run(operations) == Loop(NoTrack()).run(operations)


def test_a_loop_that_repeats_itself_asks_the_rule_no_more() -> None:
    loop = Loop(Track())
    loop.run(TRAINING * 8)
    loop.watch.rule = None  # type: ignore[assignment]
    assert loop.run(TRAINING * 8).count("boundary") == 15


def test_what_the_rule_missed_is_told_to_it_when_the_loop_changes() -> None:
    loop, control = Loop(Track()), Loop(NoTrack())
    for one in (loop, control):
        one.run(TRAINING * 8)
        one.run([("forward", 1, False, False)])
    assert isinstance(loop.watch.rule, BoundaryRule)
    assert loop.watch.rule.state() == control.watch.rule.state()


def test_a_loop_that_never_repeats_itself_is_left_in_peace() -> None:
    track = Track()
    loop = Loop(track)
    for number in range(4 * MISSES_BEFORE_REST):
        loop.run([("forward", 0, True, True)] * (1 + number % 5) + [("backward",), ("step", 0)])
    assert track.at == -1
    assert track._rest > 0
