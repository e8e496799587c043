"""The bounds of docs/policies.md hold: fair, priority, and how often a waiter may be overtaken."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodedaemon.core.ordering import EqualProgress
from nodedaemon.core.state.sessions import SessionState
from nodedaemon.core.state.waiting import WaitList
from nodedaemon.core.types import MIB, DeviceLimits, Domain, JobClass, SessionId
from tests.support.engine_timeline import Timeline
from tests.support.engine_world import World

ROUNDING_NS = 1_000


def run_all(run: Callable[[int], object]) -> None:
    for seed in range(40):
        run(seed)


def run_fair(seed: int, step_count: int = 250) -> None:
    """Sessions with random weights and iteration lengths, in one to four lanes, that never stop waiting."""
    rng = random.Random(seed)
    lane_count = rng.randint(1, 4)
    world = World(
        DeviceLimits(1024 * MIB, policy=rng.choice(["fair", "priority"]), lanes_max=lane_count, overtakes_max=10**9)
    )
    weights = {SessionId(number): rng.randint(1, 4) for number in range(1, rng.randint(3, 7))}
    scale_ns = {session: rng.choice([50_000, 1_000_000, 20_000_000]) for session in weights}
    timeline = Timeline(world, lambda session: rng.randint(scale_ns[session] // 2, scale_ns[session]))
    for session, weight in weights.items():
        world.arrive(session, 10, rng.choice([50, 150, 200]), weight=weight)
    world.confirm_all()
    for session in weights:
        world.want(session)
    world.is_checked = False
    for _ in range(step_count):
        timeline.step()
        world.tick(world.now_ns)  # leases run without events: bring the service clock up to now
        check_fair_bound(world, timeline, weights)
    ran = {one.session for one in world.engine.snapshot().devices[0].sessions if one.service_ns}
    assert ran == set(weights), "a session never ran, so the bound was not tested"


def check_fair_bound(world: World, timeline: Timeline, weights: dict[SessionId, int]) -> None:
    (device,) = world.engine.snapshot().devices
    attained = {one.session: one.service_ns for one in device.sessions}
    for ahead, behind in permutations(weights, 2):
        gap_ns = attained[ahead] / weights[ahead] - attained[behind] / weights[behind]
        bound_ns = timeline.longest_ns.get(ahead, 0) / weights[ahead] + ROUNDING_NS
        assert gap_ns <= bound_ns, f"session {ahead} is {gap_ns} ns ahead of {behind}; {bound_ns} are allowed"


@settings(max_examples=50)
@given(st.integers(0, 2**32))
def test_fair_keeps_its_bound_with_any_weights_lanes_and_iteration_times(seed: int) -> None:
    run_fair(seed)


def test_a_policy_without_equal_progress_breaks_the_fair_bound(monkeypatch) -> None:
    monkeypatch.setattr(EqualProgress, "lease_service", lambda self, holder, first: None)
    with pytest.raises(AssertionError, match="ahead of"):
        run_all(run_fair)


def run_priority(seed: int, policy: str = "priority") -> None:
    """Build a random state, let a high session want a grant, end the iterations under way: now it must run."""
    rng = random.Random(seed)
    world = World(DeviceLimits(1024 * MIB, policy=policy, lanes_max=rng.randint(1, 3), domain_quantum_ns=10**9))
    high = SessionId(1)
    world.arrive(high, 10, 200, job_class=JobClass.HIGH, domain=Domain(f"user:{rng.randrange(3)}"))
    world.confirm_all()
    for number in range(2, rng.randint(3, 9)):
        job_class = rng.choice([JobClass.NORMAL, JobClass.BEST_EFFORT])
        world.arrive(
            number, 20, rng.choice([100, 300, 500]), job_class=job_class, domain=Domain(f"user:{rng.randrange(3)}")
        )
        world.confirm_all()
        for session in list(world.grants):
            if session in world.grants:
                world.boundary(session)
        world.confirm_all()
        if SessionId(number) in world.admitted:
            world.want(number)
    for _ in range(rng.randrange(30)):
        world.wait(rng.randrange(10**8))
        if world.grants:
            world.boundary(rng.choice(list(world.grants)), wants_next=rng.random() < 0.9)
        world.confirm_all()
    under_way = list(world.grants)
    world.want(high)
    world.confirm_all()
    for session in under_way:
        if session in world.grants:
            assert world.boundary(session), "an iteration of a lower class started while a high one waited"
            world.confirm_all()
    assert high in world.grants, "the high session waits for more than the iterations that were under way"
    (device,) = world.engine.devices()
    assert all(
        one.job_class is JobClass.HIGH for one in device.sessions.values() if one.state is SessionState.RUNNING
    ), "a lower class continues to run beside a high one"


@given(st.integers(0, 2**32))
def test_a_high_session_waits_for_the_iterations_under_way_and_no_longer(seed: int) -> None:
    run_priority(seed)


def test_a_policy_without_classes_makes_a_high_session_wait_for_more() -> None:
    with pytest.raises(AssertionError):
        run_all(lambda seed: run_priority(seed, "fair"))


def run_overtaking(seed: int, step_count: int = 300) -> int:
    """Count independently of the engine how often each waiter is overtaken. Returns the largest count."""
    rng = random.Random(seed)
    allowed = rng.choice([1, 3, 10])
    policy = rng.choice(["fifo", "srtf", "pack", "fair", "priority"])
    world = World(DeviceLimits(1024 * MIB, policy=policy, lanes_max=rng.randint(1, 3), overtakes_max=allowed))
    since: dict[SessionId, tuple[int, int]] = {}
    counts: dict[SessionId, int] = {}
    clock = iter(range(10**9))
    worst = 0

    def on_start(session: SessionId) -> None:
        nonlocal worst
        began = since.pop(session, (next(clock), 0))[0]
        counts.pop(session, None)
        (device,) = world.engine.devices()
        classes = {one.id: one.job_class for one in device.sessions.values()}
        for waiter, (waits_since, _) in since.items():
            is_peer = policy != "priority" or classes[waiter] is classes[session]
            if waits_since < began and is_peer:
                counts[waiter] = counts.get(waiter, 0) + 1
                worst = max(worst, counts[waiter])
                assert counts[waiter] <= allowed, f"{policy}: session {waiter} overtaken {counts[waiter]} times"

    timeline = Timeline(world, lambda session: rng.randint(1_000, 50_000), on_start=on_start)
    sessions = [SessionId(number) for number in range(1, rng.randint(3, 8))]
    for session in sessions:
        job_class = rng.choice(list(JobClass))
        world.arrive(session, 10, rng.choice([50, 250]), job_class=job_class, remaining_ns=rng.randrange(10**7))
    world.confirm_all()
    for session in sessions:
        since[session] = (next(clock), 0)
        world.want(session)
    world.is_checked = False
    for _ in range(step_count):
        timeline.step()
        for session in sessions:
            if session not in world.grants and session not in since:
                since[session] = (next(clock), 0)
    return worst


@settings(max_examples=50)
@given(st.integers(0, 2**32))
def test_no_waiter_is_overtaken_more_often_than_allowed(seed: int) -> None:
    run_overtaking(seed)


def test_without_the_count_a_waiter_is_overtaken_without_limit(monkeypatch) -> None:
    monkeypatch.setattr(WaitList, "oldest_count", property(lambda self: 0))
    with pytest.raises(AssertionError, match="overtaken"):
        run_all(run_overtaking)
