"""The theorem: whatever fits the shards can always make progress.

Jobs are placed as Slurm places them, by adding up charges. Then an arrival must be admitted as soon as the iterations
under way at its arrival have ended, and every session that wants to run must run, with any policy and one to five
domains. Each control breaks the charge or the lanes in one way, and the same check must fail.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodedaemon.core.memory import charge_units, device_units
from nodedaemon.core.state.lanes import Device, Lane
from nodedaemon.core.types import MIB, DeviceLimits, Domain, JobClass, SessionId
from tests.property.core.test_safety import POLICY_NAMES, policy_of
from tests.support.engine_world import World

CAPACITY_BYTES = 1024 * MIB
UNIT_BYTES = 16 * MIB
SESSION_COUNT_MAX = 24

Charge = Callable[[int, int, int], int]


class StuckError(AssertionError):
    """A session waits for more than the iterations under way."""


def true_charge(persistent_bytes: int, ephemeral_bytes: int, reserve_bytes: int) -> int:
    return charge_units(persistent_bytes, ephemeral_bytes, reserve_bytes, UNIT_BYTES)


def rounded_down(persistent_bytes: int, ephemeral_bytes: int, reserve_bytes: int) -> int:
    return (persistent_bytes + max(0, ephemeral_bytes - reserve_bytes)) // UNIT_BYTES


def persistent_alone(persistent_bytes: int, ephemeral_bytes: int, reserve_bytes: int) -> int:
    return charge_units(persistent_bytes, 0, reserve_bytes, UNIT_BYTES)


def run_cluster(seed: int, charge: Charge = true_charge, *, lowers_reserve: bool = False) -> int:
    """Place random jobs by their charges and check the theorem. Returns how many sessions were placed."""
    rng = random.Random(seed)
    reserve_bytes = rng.choice([128, 256, 384, 512]) * MIB
    limits = DeviceLimits(
        capacity_bytes=CAPACITY_BYTES,
        lane_reserve_bytes=reserve_bytes,
        lanes_max=rng.randint(1, 4),
        policy=rng.choice(POLICY_NAMES),
        overtakes_max=rng.choice([1, 5, 50]),
        domain_quantum_ns=rng.choice([0, 10_000, 1_000_000]),
    )
    world = World(limits, policy_of)
    domain_count = rng.randint(1, 5)
    free_units = device_units(CAPACITY_BYTES, reserve_bytes, UNIT_BYTES)
    placed: list[SessionId] = []
    for number in range(1, SESSION_COUNT_MAX + 1):
        persistent_bytes = rng.randrange(2, 130, 2) * MIB
        ephemeral_bytes = rng.randrange(2, 700, 2) * MIB
        if lowers_reserve and number == SESSION_COUNT_MAX // 2:
            # Fewer bytes for lanes, more for shards, under running jobs that were charged by the larger reserve.
            free_units += reserve_bytes // 2 // UNIT_BYTES
            reserve_bytes //= 2
        units = charge(persistent_bytes, ephemeral_bytes, reserve_bytes)
        if units > free_units:
            continue
        free_units -= units
        session = SessionId(number)
        arrive(world, session, persistent_bytes, ephemeral_bytes, rng, domain_count)
        placed.append(session)
        world.want(session)
        disturb(world, rng)
    every_session_runs(world, placed, rng)
    return len(placed)


def arrive(
    world: World, session: SessionId, persistent_bytes: int, ephemeral_bytes: int, rng: random.Random, domain_count: int
) -> None:
    under_way = list(world.grants)
    world.arrive(
        session,
        persistent_bytes // MIB,
        ephemeral_bytes // MIB,
        domain=Domain(f"user:{rng.randrange(domain_count)}"),
        job_class=rng.choice(list(JobClass)),
        weight=rng.randint(1, 3),
    )
    world.confirm_all()
    for running in under_way:
        if running in world.grants:
            world.boundary(running)
            world.confirm_all()
    if session not in world.admitted:
        raise StuckError(f"session {session} waits for more than the iterations that were under way")


def disturb(world: World, rng: random.Random) -> None:
    """Let some boundaries and some time pass, so that the next arrival finds lanes in any state."""
    for _ in range(rng.randrange(6)):
        world.wait(rng.randrange(20_000))
        if world.grants:
            world.boundary(rng.choice(list(world.grants)))
        world.confirm_all()


def every_session_runs(world: World, placed: list[SessionId], rng: random.Random) -> None:
    """All sessions want grants all the time. Bounded overtaking and the quantum limit how long one can be skipped."""
    ran: set[SessionId] = set()
    rounds = len(placed) * (world.limits.overtakes_max + 2) * 3 + 50
    for _ in range(rounds):
        world.confirm_all()
        ran.update(world.grants)
        # Classes are strict by design: a high session that never stops would keep the others waiting forever.
        for session in list(world.grants):
            if world.limits.policy in ("priority", "hostile-class") and session in world.grants:
                world.boundary(session, wants_next=False)
                world.confirm_all()
            elif session in world.grants:
                world.boundary(session)
        world.confirm_all()
        world.wait(rng.choice([1_000, 50_000, 1_100_000]))
        if ran >= set(placed):
            return
    raise StuckError(f"sessions {sorted(set(placed) - ran)} never ran")


@given(st.integers(0, 2**32))
def test_whatever_fits_the_shards_makes_progress(seed: int) -> None:
    run_cluster(seed)


def fails_somewhere(run: Callable[[int], object], seed_count: int = 400) -> bool:
    for seed in range(seed_count):
        try:
            run(seed)
        except AssertionError:
            return True
    return False


def test_the_check_passes_where_the_controls_fail() -> None:
    assert not fails_somewhere(run_cluster, 150)
    assert sum(run_cluster(seed) for seed in range(10)) > 30, "too few sessions were placed for a meaningful check"


@pytest.mark.parametrize("charge", [rounded_down, persistent_alone])
def test_a_charge_that_is_too_small_is_caught(charge: Charge) -> None:
    assert fails_somewhere(lambda seed: run_cluster(seed, charge))


def test_lowering_the_reserve_under_running_jobs_is_caught() -> None:
    assert fails_somewhere(lambda seed: run_cluster(seed, lowers_reserve=True))


def test_lanes_that_are_never_parked_are_caught(monkeypatch) -> None:
    def own_lanes_only(device: Device) -> Iterator[Lane]:
        del device
        return iter(())

    monkeypatch.setattr(Device, "victims", own_lanes_only)
    assert fails_somewhere(run_cluster)
