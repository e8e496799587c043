"""Memory arithmetic by example: rounding, charges, shards, the memory rule at its limit, and the automatic reserve."""

from __future__ import annotations

import pytest

from nodedaemon.core.memory import (
    RESERVES_TRIED_MAX,
    auto_reserve,
    charge_bytes,
    charge_units,
    device_units,
    round_up,
    with_headroom,
)
from nodedaemon.core.types import GIB, MIB, Profile

UNIT = 16 * MIB


@pytest.mark.parametrize(
    ("size_bytes", "rounded_bytes"),
    [(0, 0), (1, 2 * MIB), (2 * MIB, 2 * MIB), (2 * MIB + 1, 4 * MIB), (300 * MIB, 300 * MIB)],
)
def test_sizes_are_rounded_up_to_the_granularity(size_bytes: int, rounded_bytes: int) -> None:
    assert round_up(size_bytes) == rounded_bytes


def test_headroom_is_added_before_rounding() -> None:
    assert with_headroom(100 * MIB, 10) == 110 * MIB
    assert with_headroom(101 * MIB, 10) == 112 * MIB
    assert with_headroom(1, 10) == 2 * MIB
    assert with_headroom(100 * MIB, 0) == 100 * MIB


@pytest.mark.parametrize(
    ("persistent_mib", "ephemeral_mib", "reserve_mib", "charge_mib"),
    [
        (100, 300, 0, 400),  # without a reserve: the peak
        (100, 300, 200, 200),  # what exceeds the reserve
        (100, 300, 300, 100),  # iterations that fit the reserve cost nothing
        (100, 300, 500, 100),
        (100, 0, 500, 100),
    ],
)
def test_a_charge_is_persistent_bytes_and_what_exceeds_the_reserve(
    persistent_mib: int, ephemeral_mib: int, reserve_mib: int, charge_mib: int
) -> None:
    assert charge_bytes(persistent_mib * MIB, ephemeral_mib * MIB, reserve_mib * MIB) == charge_mib * MIB


def test_a_charge_in_shards_is_rounded_up_and_at_least_one() -> None:
    assert charge_units(32 * MIB, 0, 0, UNIT) == 2
    assert charge_units(33 * MIB, 0, 0, UNIT) == 3
    assert charge_units(0, 100 * MIB, 100 * MIB, UNIT) == 1


def test_a_devices_shards_are_rounded_down_and_never_negative() -> None:
    assert device_units(1000 * MIB, 200 * MIB, UNIT) == 50
    assert device_units(1015 * MIB, 200 * MIB, UNIT) == 50
    assert device_units(200 * MIB, 200 * MIB, UNIT) == 0
    assert device_units(100 * MIB, 200 * MIB, UNIT) == 0


def test_one_job_over_the_reserve_beside_others_under_it_fills_the_device_exactly() -> None:
    capacity, reserve = 1024 * MIB, 256 * MIB
    jobs = [(256 * MIB, 512 * MIB), (128 * MIB, 256 * MIB), (128 * MIB, 0)]
    charges = [charge_units(*job, reserve, UNIT) for job in jobs]
    assert charges == [32, 8, 8]
    assert sum(charges) == device_units(capacity, reserve, UNIT) == 48
    assert sum(p for p, _ in jobs) + max(e for _, e in jobs) == capacity


def test_jobs_that_share_one_reserve_fit_where_their_peaks_do_not() -> None:
    # Three jobs of peak 600 on a device of 1000: by their peaks one fits, by their charges all three do.
    charges = [charge_units(100 * MIB, 500 * MIB, 500 * MIB, 4 * MIB) for _ in range(3)]
    assert sum(charges) <= device_units(1000 * MIB, 500 * MIB, 4 * MIB)


def test_auto_reserve_without_profiles_is_a_quarter_of_the_device() -> None:
    assert auto_reserve([], 16 * GIB) == 4 * GIB
    assert auto_reserve([], 1001 * MIB) == 252 * MIB


def test_auto_reserve_ignores_profiles_that_exceed_the_device() -> None:
    assert auto_reserve([Profile(10 * GIB, 10 * GIB)], 16 * GIB) == 4 * GIB
    assert auto_reserve([Profile(10 * GIB, 10 * GIB), Profile(1 * GIB, 2 * GIB)], 16 * GIB) == 2 * GIB


def test_auto_reserve_covers_the_common_iteration_and_charges_the_rare_large_one() -> None:
    profiles = [Profile(1 * GIB, 2 * GIB)] * 20 + [Profile(1 * GIB, 10 * GIB)]
    assert auto_reserve(profiles, 16 * GIB) == 2 * GIB
    assert auto_reserve([Profile(1 * GIB, 2 * GIB)] * 2 + [Profile(1 * GIB, 10 * GIB)] * 20, 16 * GIB) == 10 * GIB


def test_auto_reserve_leaves_room_for_the_job_with_the_largest_persistent_bytes() -> None:
    # A reserve of 4 GiB suits most jobs, but then the last job, all persistent, would never be admitted.
    profiles = [Profile(1 * GIB, 4 * GIB)] * 50 + [Profile(16 * GIB, 0)]
    assert auto_reserve(profiles, 16 * GIB) == 0
    assert auto_reserve(profiles[:-1], 16 * GIB) == 4 * GIB


def test_auto_reserve_counts_headroom() -> None:
    assert auto_reserve([Profile(1 * GIB, 1000 * MIB)], 16 * GIB, headroom_percent=10) == 1100 * MIB


def test_auto_reserve_of_equal_profiles_is_one_lane_of_their_size() -> None:
    assert auto_reserve([Profile(100 * MIB, 1000 * MIB)] * 300, 16 * GIB) == 1000 * MIB


def test_auto_reserve_tries_only_some_of_very_many_sizes_and_still_admits_every_profile() -> None:
    profiles = [Profile(400 * MIB, (100 + 2 * number) * MIB) for number in range(7 * RESERVES_TRIED_MAX)]
    reserve = auto_reserve(profiles, 16 * GIB)
    assert reserve in {profile.ephemeral_bytes for profile in profiles}
    room = device_units(16 * GIB, reserve)
    assert all(charge_units(one.persistent_bytes, one.ephemeral_bytes, reserve) <= room for one in profiles)
