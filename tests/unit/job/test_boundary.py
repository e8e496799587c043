"""The boundary rule on sequences of events, written as text with a bar (|) where a boundary must lie.

D: loader. F0, f0: forward of root 0 with and without gradients. E0: with gradients, in evaluation mode. N0: with
gradients, but its output carries none. B: backward. S0: step of optimizer 0. `S0[F0 B]`: the step runs what is in the
brackets. I: the job marks an iteration itself.
"""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from salus_job.boundary import RULE_BYTES, BoundaryRule

EVENT = re.compile(r"([DFfENBSI])(\d?)(\[[^\]]*\])?")


def drive(rule: BoundaryRule, text: str) -> str:
    """The same text with a bar at each boundary."""
    out: list[str] = []
    for match in EVENT.finditer(text):
        kind, number, inner = match.group(1), int(match.group(2) or 0), match.group(3)
        before, after, inside = False, False, ""
        if kind == "I":
            before = rule.iteration_entered()
        elif kind == "D":
            before = rule.loader_entered()
            rule.loader_left()
        elif kind == "B":
            rule.backward_entered()
            rule.backward_left()
        elif kind == "S":
            before = rule.step_entered(number)
            inside = drive(rule, inner) if inner else ""
            after = rule.step_left(number)
        else:
            grad = kind != "f"
            before = rule.forward_entered(number, grad, kind != "E")
            rule.forward_left(number, grad, kind != "N")
        name = match.group(1) + match.group(2) + (f"[{inside}]" if inner else "")
        out.append(("|" if before else "") + name + ("|" if after else ""))
    return " ".join(out)


def rule_with(optimizers: int = 1) -> BoundaryRule:
    rule = BoundaryRule()
    for number in range(optimizers):
        rule.optimizer_made(number)
    return rule


CRITIC = "F0 B S1 F0 B S1 F0 B S1 F0 B S0"
# Each case makes its optimizers before the first event.
CASES = {
    "the loader is the anchor once it was entered twice": "D F0 B S0 |D F0 B S0 |D F0 B S0 |D",
    "evaluation with a loader": "D F0 B S0 |D F0 B S0 |D D f0 f1 |D f0 f1 |D",
    "micro-batches of one step belong together": "D F0 B D F0 B S0 |D F0 B D F0 B S0 |D",
    "batches fetched together are one entry": "D D F0 B F0 B S0 |D D F0 B F0 B S0 |D",
    "without a loader the forward that opens iterations is the anchor": "F0 B S0 |F0 B S0 |F0 B S0 |F0",
    "two roots make one iteration": "F0 F1 B S0 |F0 F1 B S0 |F0 F1 B S0",
    "a teacher's forward opens the iteration": "f0 F1 B S0 |f0 F1 B S0 |f0 F1 B S0",
    "a teacher asked twice": "f0 f0 F1 B S0 |f0 f0 F1 B S0 |f0 f0 F1 B S0",
    "evaluation between steps": "F0 B S0 |F0 B S0 |f0 |f0 |f0 |F0 B S0 |F0",
    "a forward for the log after every step": "F0 B S0 f0 " * 8 + "|F0 B S0 f0 |F0 B S0 f0 |F0",
    # The first such forward counts as an evaluation.
    "a forward now and then after a step may lead or trail": "F0 B S0 |F0 B S0 |f0 |"
    + "F0 B S0 |F0 B S0 f0 " * 2
    + "F0",
    "act, then learn": "f0 f1 F0 B S0 |f0 f1 F0 B S0 |f0 f1 F0 B S0 |f0",
    "two optimizers wait until their cycle closes": "F0 B S0 F0 B S1 F0 B S0 F0 B S1 |F0 B S0 F0 B S1 |F0",
    "a cycle with three critic steps": f"{CRITIC} {CRITIC} |{CRITIC} |F0",
    "optimizers that step back to back": "F0 B S0 S1 F0 B S0 S1 |F0 B S0 S1 |F0",
    "the forward inside the step": "S0[F0 B F0 B] |S0[F0 B F0 B] |S0[F0 B]",
    "no module and no loader: the end of the step": "B S0 B S0 B S0| B S0| B S0|",
    "no optimizer: backward closes": "F0 B F0 B F0 B F0 B |F0 B |F0 B",
    "inference": "f0 f0 |f0 |f0 |f0",
    "inference of two roots": "f0 f1 f0 f1 |f0 f1 |f0 f1",
    "inference with gradients left on": "E0 E0 |E0 |E0 |E0",
    "a recurrent cell is called many times in one iteration": "F0 F0 F0 F0 F0 B S0 |F0 F0 F0 F0 F0 B S0 |F0",
    "a skipped step makes one long iteration": "F0 B S0 |F0 B F0 B S0 |F0 B S0 |F0",
    "metrics after the step open nothing": "F0 B S0 F1 " * 8 + "|F0 B S0 F1 |F0",
    "metrics after the step, loader": "D F0 B S0 F1 D F0 B S0 F1 |D F0 B S0 F1 |D F0",
    "an output without gradients opens nothing": "D F0 B S0 N1 |D F0 B S0 N1 |D F0 B S0 N1 |D",
    "a cell called by hand in evaluation": "F0 F0 F0 B S0 |F0 F0 F0 B S0 |f0 f0 f0 |f0 f0 f0 |f0 f0 f0",
    "actions asked now and then": "f0 F1 B S0 f1 f0 F1 B S0 f1 f0 F1 B S0 |f0 F1 B S0 f1 f0 F1 B S0 |f0 F1",
    "batches fetched ahead in the middle": "D " + "F0 D B S0 " * 5 + "|F0 D B S0 |F0 D B S0",
    "the job marks its iterations itself": "I F0 B S0 F0 B S0 |I D F0 |I",
}


@pytest.mark.parametrize("case", CASES)
def test_boundaries_lie_where_the_bars_are(case):
    optimizers = set(re.findall(r"S\d", CASES[case]))
    assert drive(rule_with(len(optimizers)), CASES[case].replace("|", "")) == CASES[case]


def test_another_phase_of_a_job_uses_an_optimizer_that_is_made_later():
    expected = "F0 B S0 |F0 B S0 |" + "F0 B S1 " * 6 + "|F0 B S1 |F0"
    assert drive(rule_with(1), expected.replace("|", "")) == expected


def test_a_forward_inside_the_loader_or_a_backward_is_no_boundary():
    rule = rule_with()
    drive(rule, "F0 B S0 F0 B S0")
    assert rule.loader_entered() is False
    assert rule.forward_entered(0, True, True) is False
    rule.loader_left()
    rule.backward_entered()
    assert rule.forward_entered(0, True, True) is False
    rule.backward_left()


def test_a_step_left_by_an_exception_does_not_hide_the_next():
    rule = rule_with()
    drive(rule, "F0 B S0 |F0 B S0")
    rule.step_entered(0)
    assert drive(rule, "F0 B S0 F0 B S0 F0") == "F0 B S0 |F0 B S0 |F0"


def test_the_rule_learns_again_when_models_are_created_again():
    rule = rule_with()
    assert drive(rule, "F0 B S0 F0 B S0 F0 B S0") == "F0 B S0 |F0 B S0 |F0 B S0"
    rule.optimizer_made(1)
    rule.optimizer_gone(0)
    assert drive(rule, "F1 B S1 " * 5).endswith("F1 B S1 |F1 B S1 |F1 B S1")


@pytest.mark.parametrize(
    ("optimizers", "first", "again"),
    [
        (2, "F0 B S0 F0 B S1 " * 4, "F0 B S0 F0 B S1 |F0 B S0 F0 B S1 |F0"),
        (0, "f0 " * 5, "f0 |f0 |f0"),
        (0, "F0 B " * 6, "F0 B |F0 B |F0 B"),
        (1, "B S0 " * 5, "B S0| B S0|"),
        (1, "D F0 B S0 " * 3, "D F0 B S0 |D F0 B S0 |D"),
    ],
)
def test_the_second_run_of_a_job_starts_with_what_the_first_learned(optimizers, first, again):
    rule = rule_with(optimizers)
    drive(rule, first)
    known = BoundaryRule(rule.learned())
    for number in range(optimizers):
        known.optimizer_made(number)
    assert drive(known, again.replace("|", "")) == again


@given(st.text(max_size=150))
def test_any_text_can_be_loaded_as_a_rule(text):
    assert drive(BoundaryRule(text), "F0 B S0")


EVENTS = st.lists(
    st.tuples(st.sampled_from("DFfENBS"), st.integers(0, 3)).map(lambda pair: f"{pair[0]}{pair[1]}"), max_size=120
)


@given(st.integers(0, 3), EVENTS)
def test_no_boundary_lies_in_an_open_iteration(optimizers, events):
    """Whatever the events: no boundary lies between a backward and its step, and the rule can still be written."""
    rule = rule_with(optimizers)
    answered = True
    for event in events:
        shown = drive(rule, event)
        if shown.startswith("|") and optimizers:
            assert answered
        if event[0] == "B":
            answered = False
        elif event[0] == "S":
            answered = True
    assert len(rule.learned()) <= RULE_BYTES
    BoundaryRule(rule.learned())
