"""The arithmetic behind the memory rule holds for all sizes, and its bound is tight."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import assume, example, given
from hypothesis import strategies as st

from nodedaemon.core.memory import auto_reserve, charge_bytes, charge_units, device_units, round_up, with_headroom
from nodedaemon.core.types import MIB, Profile

UNIT_BYTES = 16 * MIB

sizes = st.tuples(st.integers(0, 600 * MIB), st.integers(0, 1200 * MIB))
jobs = st.lists(sizes, min_size=1, max_size=12)
capacities = st.integers(1, 4096 * MIB)
profiles = st.lists(
    st.builds(Profile, st.integers(0, 900).map(MIB.__mul__), st.integers(0, 1200).map(MIB.__mul__)), max_size=8
)


def fill(wanted: list[tuple[int, int]], capacity_bytes: int, reserve_bytes: int) -> list[tuple[int, int]]:
    """Place jobs as Slurm does: one after another while their charges fit."""
    free = device_units(capacity_bytes, reserve_bytes, UNIT_BYTES)
    placed = []
    for job in wanted:
        units = charge_units(*job, reserve_bytes, UNIT_BYTES)
        if units <= free:
            free -= units
            placed.append(job)
    return placed


@given(jobs, capacities, st.integers(0, 4096 * MIB))
def test_whatever_fits_the_shards_fits_the_device(
    wanted: list[tuple[int, int]], capacity_bytes: int, reserve_bytes: int
) -> None:
    placed = fill(wanted, capacity_bytes, reserve_bytes)
    if placed:
        assert sum(p for p, _ in placed) + max(e for _, e in placed) <= capacity_bytes


@given(jobs, st.integers(0, 2048 * MIB))
def test_the_bound_is_tight(wanted: list[tuple[int, int]], reserve_bytes: int) -> None:
    """If at most one iteration exceeds the reserve and the largest reaches it, one byte less would not be enough."""
    largest = max(e for _, e in wanted)
    assume(largest >= reserve_bytes and sum(e > reserve_bytes for _, e in wanted) <= 1)
    charge = sum(charge_bytes(p, e, reserve_bytes) for p, e in wanted)
    capacity_bytes = charge + reserve_bytes
    assert sum(p for p, _ in wanted) + largest == capacity_bytes


@given(st.integers(0, 2**40), st.integers(1, 2**30), st.integers(0, 200))
def test_rounding_never_makes_a_size_smaller(size_bytes: int, step_bytes: int, headroom_percent: int) -> None:
    assert 0 <= round_up(size_bytes, step_bytes) - size_bytes < step_bytes
    assert with_headroom(size_bytes, headroom_percent, step_bytes) * 100 >= size_bytes * (100 + headroom_percent)


def rounded(profile: Profile) -> tuple[int, int]:
    return round_up(profile.persistent_bytes), round_up(profile.ephemeral_bytes)


def admits(reserve_bytes: int, size: tuple[int, int], capacity_bytes: int) -> bool:
    units = charge_units(*size, reserve_bytes, UNIT_BYTES)
    return units <= device_units(capacity_bytes, reserve_bytes, UNIT_BYTES)


def admitted_by(reserve_bytes: int, known: list[tuple[int, int]], capacity_bytes: int) -> list[tuple[int, int]]:
    return [size for size in known if admits(reserve_bytes, size, capacity_bytes)]


@given(profiles, st.integers(1, 2048).map(MIB.__mul__))
@example([Profile(302 * MIB, 740 * MIB)], 1044 * MIB)  # fits with its own reserve and, by rounding, not without
def test_auto_reserve_admits_as_many_profiles_as_any_reserve_and_is_the_best_of_those(
    known: list[Profile], capacity_bytes: int
) -> None:
    wanted = [rounded(profile) for profile in known]
    candidates = {0, *(e for _, e in wanted)}
    fitting = [size for size in wanted if any(admits(other, size, capacity_bytes) for other in candidates)]
    assume(fitting)

    def load(reserve_bytes: int) -> Fraction:
        total = sum(charge_units(*size, reserve_bytes, UNIT_BYTES) for size in fitting)
        return Fraction(total, device_units(capacity_bytes, reserve_bytes, UNIT_BYTES))

    chosen = auto_reserve(known, capacity_bytes, UNIT_BYTES)
    chosen_count = len(admitted_by(chosen, wanted, capacity_bytes))
    for other in candidates:
        count = len(admitted_by(other, wanted, capacity_bytes))
        assert count <= chosen_count
        if count == chosen_count:
            assert load(chosen) <= load(other)


@given(profiles, st.integers(1, 2048).map(MIB.__mul__))
def test_auto_reserve_admits_every_profile_that_fits_with_a_shard_to_spare(
    known: list[Profile], capacity_bytes: int
) -> None:
    """Away from the edge, where rounding to shards decides nothing, every profile whose peak fits is admitted."""
    wanted = [rounded(profile) for profile in known if sum(rounded(profile)) + UNIT_BYTES <= capacity_bytes]
    chosen = auto_reserve([Profile(*size) for size in wanted], capacity_bytes, UNIT_BYTES)
    assert admitted_by(chosen, wanted, capacity_bytes) == wanted
