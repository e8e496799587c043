"""Finds where one iteration of a training or inference loop ends and the next begins, from the framework's events.

Theory of operation. Events come in, and each answer says whether a boundary lies just before the event (`step_left`:
just after it). The rule uses no framework, no clock and no randomness: from an equal `state()`, the same events get the
same answers. libsalus relies on this when it follows a loop (libsalus/follower.c). Roots and optimizers are small
numbers in their order of appearance, so what was learned in one run holds in the next.

An iteration is *open* from a forward with gradients, or a backward, until the optimizer leaves its step. A boundary
lies at an entry (loader, root forward or step) if work was done since the last boundary, no iteration is open, and
nothing encloses the entry. This alone would place boundaries in the middle of many iterations, so an entry must also be
an *anchor*:

- The loader, after its second entry, is the only anchor for as long as it is still entered.
- Otherwise a root forward. The forward that opens iterations is an anchor when it is first called after a boundary or
  a step. After a step, all forwards in between must be known to trail the previous iteration. Any other forward is an
  anchor when it is called more often than a training iteration calls it.
- Otherwise the entry of a step (optimizers that run the forward themselves). If neither a loader nor a module is ever
  seen, the boundary lies at the end of a step.

With several optimizers, a boundary lies only where the learned cycle of their steps closes (step_cycle.py).

The state has three parts with different lifetimes: what was learned about the job (`learned()` stores it for the next
run), what happened since the last boundary (`_fired` clears it), and what happened since the last step (`_close` learns
from it and clears it). When in doubt, the rule answers no: a missing boundary costs a turn, but a wrong one would split
an iteration. docs/boundaries.md lists the loops on which the rule was tested.
"""

from typing import Any, Dict, List, Optional, Set, Tuple

from salus_job import layouts
from salus_job.step_cycle import StepCycle

# A forward in evaluation mode that is repeated this often without a backward is inference.
EVALUATION_FORWARDS = 2
# The same in training mode with gradients, where a loop over a recurrent cell looks like inference.
TRAINING_FORWARDS = 64
# Inference without an optimizer: the first forwards may be a warm-up.
WARM_UP_FORWARDS = 2
BACKWARDS_BEFORE_CLOSING = 4
BARE_STEPS = 3
# More forwards without gradients before a step than this are a rollout or an evaluation, not part of the iteration.
PREAMBLE_FORWARDS_MAX = 8
# A loader that was not entered in this many iterations is no longer the anchor.
LOADER_ITERATIONS_MAX = 32
LOADER_REFUSALS = 4
# After this many iterations without the opening forward, another forward becomes the opening one.
OPENINGS_MISSED = 3
# Forwards between a step and the opening forward trail the previous iteration if they always occur. If they occur only
# sometimes, they may belong to the next iteration, and there is no boundary.
TRAILS_REQUIRED = 8
TRAILS_BEFORE_BELIEF_WITH_LOADER = 2
RULE_VERSION = 1
# Numbers in the first part of a `learned()` text, after the version.
FACT_COUNT = 5
# The size of the field on the wire, without its terminating zero.
RULE_BYTES = layouts.RULE_BYTES - 1

Forward = Tuple[int, bool]


class BoundaryRule:
    """`learned` is the result of `learned()` in an earlier run."""

    def __init__(self, learned: str = "") -> None:
        facts, cycle, self._opening, self._trailing, self._expected = _read_learned(learned)
        self._loader_count, self._closings, self._bare_streak, is_inference, self._backward_count = facts
        self._is_inference = bool(is_inference)
        self._cycle = StepCycle(cycle)
        self._loader_is_anchor = True
        self._loader_refusals = 0
        self._suppressed = 0
        self._enclosing = 0
        self._steps: List[int] = []
        self._is_explicit = False
        self._optimizer_seen = False
        # Since the last boundary.
        self._worked = False
        self._stepped = False
        self._count: Dict[Forward, int] = {}
        # Since the last step.
        self._open_by: Set[Forward] = set()
        self._is_open = False
        self._has_backward = False
        self._interval: Dict[Forward, int] = {}
        self._first: Optional[Forward] = None
        self._unanswered: Dict[Forward, int] = {}
        self._typical: Optional[Dict[Forward, int]] = None
        self._trailing_streak = 0
        self._openings_missed = 0
        self._opening_has_led = False

    def optimizer_made(self, optimizer: int) -> None:
        self._optimizer_seen = True
        self._is_inference = False
        self._cycle.alive.add(optimizer)

    def optimizer_gone(self, optimizer: int) -> None:
        self._cycle.drop(optimizer)

    def iteration_entered(self) -> bool:
        """The job marks its iterations itself; nothing else is a boundary from now on."""
        self._is_explicit = True
        fires = self._worked
        self._fired()
        self._worked = True
        return fires

    def loader_entered(self) -> bool:
        fires = False
        if not self._enclosing and not self._steps:
            self._loader_count = min(self._loader_count + 1, 2)
            if self._worked and not self._is_explicit:
                if self._is_open:
                    self._doubt_open()
                if self._is_open:
                    self._loader_refusals += 1
                else:
                    fires = self._loader_count >= 2 and self._loader_is_anchor and self._cycle.is_closed
        self._enclosing += 1
        if fires:
            self._fired()
        return fires

    def loader_left(self) -> None:
        self._enclosing -= 1

    def forward_entered(self, root: int, grad: bool, training: bool) -> bool:
        if self._enclosing:
            return False
        forward = (root, grad)
        fires = False
        # If there is an optimizer, a backward will follow a forward in training mode.
        may_drop = not (training and self._optimizer_seen)
        interval = self._interval
        if self._worked and not self._steps and not self._is_explicit:
            if self._is_open and grad and may_drop and self._is_unanswered(forward, training):
                self._is_open = False
            if interval and forward == self._opening and self._stepped and forward not in interval:
                self._doubt_lead(forward)
            fires = not self._is_open and self._forward_fires(forward)
            if fires and self._loader_rules():
                self._suppressed += 1
                fires = False
            if fires:
                self._fired()
        self._worked = True
        self._count[forward] = self._count.get(forward, 0) + 1
        interval[forward] = interval.get(forward, 0) + 1
        if may_drop:
            self._unanswered[forward] = self._unanswered.get(forward, 0) + 1
        if self._first is None:
            self._first = forward
        if grad and forward not in self._trailing and not (may_drop and self._is_unanswered(forward, training)):
            self._is_open = True
            self._open_by.add(forward)
        return fires

    def forward_left(self, root: int, grad: bool, opens: bool) -> None:
        """`opens`: the output carries a gradient, so that a backward may follow."""
        if opens or not grad or self._enclosing:
            return
        self._open_by.discard((root, grad))
        if not self._open_by and not self._has_backward:
            self._is_open = False

    def backward_entered(self) -> None:
        self._enclosing += 1
        self._worked = True
        self._is_open = True
        self._has_backward = True
        self._is_inference = False
        self._unanswered.clear()

    def backward_left(self) -> None:
        self._enclosing -= 1
        if self._optimizer_seen:
            return
        self._backward_count = min(self._backward_count + 1, BACKWARDS_BEFORE_CLOSING)
        if self._backward_count >= BACKWARDS_BEFORE_CLOSING and not self._enclosing:
            self._close(is_complete=True)

    def step_entered(self, optimizer: int) -> bool:
        if optimizer not in self._cycle.alive:
            self.optimizer_made(optimizer)
        if optimizer in self._steps:
            # An optimizer never steps inside its own step: an exception ended the earlier one.
            del self._steps[self._steps.index(optimizer) :]
        fires = False
        if not self._enclosing and not self._steps and not self._is_explicit:
            # The forward runs inside the step, so the step is the only sign of a new iteration.
            fires = self._stepped and self._worked and not self._is_open and not self._interval
            fires = fires and self._cycle.is_closed and not self._loader_rules()
        if fires:
            self._fired()
        self._steps.append(optimizer)
        self._worked = True
        return fires

    def step_left(self, optimizer: int) -> bool:
        if optimizer in self._steps:
            del self._steps[self._steps.index(optimizer) :]
        if self._steps:
            return False
        self._cycle.step(optimizer)
        is_bare = not self._interval and self._has_backward and self._loader_count < 2
        self._bare_streak = min(self._bare_streak + 1, BARE_STEPS) if is_bare else 0
        self._close(is_complete=self._cycle.is_closed)
        fires = self._bare_streak >= BARE_STEPS and self._cycle.is_closed
        fires = fires and not self._is_explicit and not self._enclosing
        if fires:
            self._fired()
        return fires

    def learned(self) -> str:
        """What the next run of the same job can use, in at most RULE_BYTES; empty while too little was seen."""
        if self._closings < 2 and not self._is_inference:
            return ""
        facts = [
            RULE_VERSION,
            self._loader_count if self._loader_is_anchor else 0,
            min(self._closings, 2),
            self._bare_streak,
            int(self._is_inference),
            0 if self._optimizer_seen else self._backward_count,
        ]
        parts = [
            ",".join(str(fact) for fact in facts),
            # A single optimizer forms no cycle, and may have another number in the next run.
            ".".join(map(str, self._cycle.last_cycle)) if len(set(self._cycle.last_cycle)) > 1 else "",
            "" if self._opening is None else _write_forward(self._opening),
            ",".join(_write_forward(forward) for forward in sorted(self._trailing)),
            ",".join("%s*%d" % (_write_forward(forward), count) for forward, count in sorted(self._expected.items())),
        ]
        # Drop the longest part until the text fits; the next run learns it again.
        while len(";".join(parts)) > RULE_BYTES:
            parts[max(range(1, len(parts)), key=lambda n: len(parts[n]))] = ""
        return ";".join(parts)

    def state(self) -> Tuple[Any, ...]:
        """Everything that later answers depend on."""
        values = dict(vars(self), _closings=min(self._closings, 2), _cycle=vars(self._cycle))
        return tuple((name, _freeze(value)) for name, value in sorted(values.items()))

    def _fired(self) -> None:
        self._worked = False
        self._stepped = False
        self._suppressed = 0
        self._loader_refusals = 0
        self._count.clear()

    def _close(self, is_complete: bool) -> None:
        """The gradients are used. If the iteration is complete, learn which forwards it consists of."""
        self._is_open = False
        self._has_backward = False
        self._open_by.clear()
        if not is_complete:
            return
        is_missed = self._opening not in self._interval
        self._openings_missed = min(self._openings_missed + 1, OPENINGS_MISSED) if is_missed else 0
        if self._opening is None or (self._openings_missed >= OPENINGS_MISSED and self._first is not None):
            # The first iteration, or the first forward of the job was not typical.
            self._opening = self._first
            self._opening_has_led = False
        elif self._first == self._opening and self._closings:
            self._opening_has_led = True
        if self._interval != self._typical:
            for forward, count in self._interval.items():
                if (forward[1] or count <= PREAMBLE_FORWARDS_MAX) and self._closings:
                    self._expected[forward] = max(self._expected.get(forward, 0), count)
            # The first iteration may contain a warm-up: it is neither learned from nor typical.
            self._typical = dict(self._interval) if self._closings else None
        self._closings += 1
        self._stepped = True
        self._interval.clear()
        self._first = None
        self._count.clear()
        self._unanswered.clear()

    def _forward_fires(self, forward: Forward) -> bool:
        if not self._cycle.is_closed:
            return False
        seen = self._count.get(forward, 0)
        expected = self._expected.get(forward, 0)
        if self._stepped and not seen and (self._opening is None or forward == self._opening):
            return self._trailing.issuperset(self._interval)
        if not self._optimizer_seen and not self._closings:
            if self._unanswered.get(forward, 0) >= WARM_UP_FORWARDS:
                self._is_inference = True
            return self._is_inference and seen >= 1
        if self._closings < 2:
            return False
        if self._stepped:
            return seen >= expected
        if forward == self._opening and not seen:
            return True
        # Evaluation calls a root as often as training does (a recurrent cell, a siamese network).
        return seen >= max(1, expected, self._expected.get((forward[0], True), 0))

    def _is_unanswered(self, forward: Forward, training: bool) -> bool:
        """Many forwards without a backward: the job does not keep their graphs."""
        if self._has_backward:
            return False
        if training:
            return not self._optimizer_seen and self._unanswered.get(forward, 0) >= TRAINING_FORWARDS
        extra = 2 if self._optimizer_seen else 0
        return self._unanswered.get(forward, 0) >= EVALUATION_FORWARDS + extra

    def _doubt_open(self) -> None:
        """The loader is entered while only forwards after the last step, such as metrics, keep an iteration open.

        If this repeats, these forwards trail the iteration and open nothing.
        """
        if self._has_backward or not self._stepped or self._opening in self._open_by or not self._open_by:
            self._trailing_streak = 0
            return
        self._trailing_streak += 1
        if self._trailing_streak >= TRAILS_BEFORE_BELIEF_WITH_LOADER:
            self._trailing |= self._open_by
            self._open_by.clear()
            self._is_open = False

    def _doubt_lead(self, forward: Forward) -> None:
        """Other forwards came between the step and the opening forward: decide whether they trail or lead."""
        if self._opening_has_led or self._has_backward or self._trailing.issuperset(self._interval):
            return
        self._trailing_streak += 1
        if self._trailing_streak >= TRAILS_REQUIRED:
            self._trailing |= set(self._interval) - {forward}
            self._open_by -= self._trailing
            self._is_open = bool(self._open_by)

    def _loader_rules(self) -> bool:
        """Whether the loader is the anchor now, so that forwards and steps are not."""
        if not self._loader_is_anchor or self._loader_count < 2:
            return False
        if self._loader_refusals >= LOADER_REFUSALS and self._suppressed >= LOADER_REFUSALS:
            # Batches are fetched ahead in the middle of iterations: the loader shows no boundary.
            self._loader_is_anchor = False
            return False
        return self._suppressed < LOADER_ITERATIONS_MAX


def _freeze(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(sorted((key, _freeze(item)) for key, item in value.items()))
    if isinstance(value, set):
        return tuple(sorted(value))
    return tuple(value) if isinstance(value, list) else value


def _write_forward(forward: Forward) -> str:
    return "%d%s" % (forward[0], "F" if forward[1] else "f")


def _read_forward(text: str) -> Forward:
    return int(text[:-1]), text[-1:] == "F"


def _read_learned(text: str) -> "Tuple[List[int], List[int], Optional[Forward], Set[Forward], Dict[Forward, int]]":
    """The parts of a `learned()` text. An unreadable text counts as empty: the rule is learned again."""
    try:
        facts, cycle, opening, trailing, expected = text.split(";")
        version, *numbers = map(int, facts.split(","))
        pairs = [part.split("*") for part in expected.split(",") if part]
        if version == RULE_VERSION and len(numbers) == FACT_COUNT:
            return (
                numbers,
                [int(part) for part in cycle.split(".") if part],
                _read_forward(opening) if opening else None,
                {_read_forward(part) for part in trailing.split(",") if part},
                {_read_forward(forward): int(count) for forward, count in pairs},
            )
    except ValueError:
        pass
    return [0] * FACT_COUNT, [], None, set(), {}
