"""`LaneReserve=auto`: R among the recorded sizes, also where there are very many of them."""

from nodedaemon.core.memory import RESERVES_TRIED_MAX, auto_reserve, charge_units, device_units
from nodedaemon.core.types import GIB, MIB, Profile


def test_equal_profiles_reserve_one_lane_of_their_size():
    assert auto_reserve([Profile(100 * MIB, 1000 * MIB)] * 300, 16 * GIB) == 1000 * MIB


def test_without_profiles_a_quarter_is_reserved():
    assert auto_reserve([], 16 * GIB) == 4 * GIB


def test_a_profile_larger_than_the_device_takes_no_part():
    fine, too_large = Profile(100 * MIB, 1000 * MIB), Profile(100 * MIB, 20 * GIB)
    assert auto_reserve([fine, too_large], 16 * GIB) == 1000 * MIB


def test_of_very_many_sizes_some_are_tried_and_every_profile_is_still_admitted():
    profiles = [Profile(400 * MIB, (100 + 2 * number) * MIB) for number in range(7 * RESERVES_TRIED_MAX)]
    reserve = auto_reserve(profiles, 16 * GIB)
    assert reserve in {profile.ephemeral_bytes for profile in profiles}
    room = device_units(16 * GIB, reserve)
    assert all(charge_units(one.persistent_bytes, one.ephemeral_bytes, reserve) <= room for one in profiles)
