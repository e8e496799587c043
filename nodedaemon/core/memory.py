"""The arithmetic of persistent, ephemeral, lane, device and shard bytes.

One rule must never break (docs/adr/0003-memory-rule.md): on a device the persistent bytes of all sessions plus the
sizes of all lanes fit its capacity. Slurm only adds up shards, so a job is charged for its persistent bytes and
for the part of its ephemeral bytes above the lane reserve R. Then sum of charges <= C - R implies
sum of P + largest E <= C.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from nodedaemon.core.types import GRANULARITY_BYTES, MIB, Profile

SHARD_UNIT_BYTES = 16 * MIB
#: At most this many recorded sizes are tried, evenly spaced: a year of jobs has thousands that hardly differ.
RESERVES_TRIED_MAX = 256


def round_up(size_bytes: int, step_bytes: int = GRANULARITY_BYTES) -> int:
    """Round up to a multiple of `step_bytes`. Rounding down anywhere breaks the rule."""
    return -(-size_bytes // step_bytes) * step_bytes


def with_headroom(size_bytes: int, headroom_percent: int, step_bytes: int = GRANULARITY_BYTES) -> int:
    """The size to admit with: the measured size plus headroom, rounded up to the granularity of the device."""
    return round_up(-(-size_bytes * (100 + headroom_percent) // 100), step_bytes)


def charge_bytes(persistent_bytes: int, ephemeral_bytes: int, lane_reserve_bytes: int) -> int:
    """The bytes that a job uses of the C - R bytes that the shards of a device represent."""
    return persistent_bytes + max(0, ephemeral_bytes - lane_reserve_bytes)


def charge_units(
    persistent_bytes: int, ephemeral_bytes: int, lane_reserve_bytes: int, unit_bytes: int = SHARD_UNIT_BYTES
) -> int:
    """The charge in shards, rounded up; at least one, so that Slurm binds the job to a device."""
    return max(1, -(-charge_bytes(persistent_bytes, ephemeral_bytes, lane_reserve_bytes) // unit_bytes))


def device_units(capacity_bytes: int, lane_reserve_bytes: int, unit_bytes: int = SHARD_UNIT_BYTES) -> int:
    """The shards of a device: C - R rounded down, or none if the reserve is the whole device."""
    return max(0, capacity_bytes - lane_reserve_bytes) // unit_bytes


def auto_reserve(
    profiles: Iterable[Profile], capacity_bytes: int, unit_bytes: int = SHARD_UNIT_BYTES, headroom_percent: int = 0
) -> int:
    """Choose R among the recorded ephemeral sizes to minimise sum(charge) / (C - R) and admit every profile it can.

    A profile that no reserve admits, because its peak exceeds the device, is ignored. If rounding to shards leaves no
    reserve that admits all the others, the one that admits the most is chosen. If no profile can be admitted, or there
    is none, R is a quarter of the device: enough for a first job to share, and it leaves room for persistent bytes.
    """
    # A sweep has thousands of equal profiles, so each size is computed once.
    sizes = Counter(
        (with_headroom(p.persistent_bytes, headroom_percent), with_headroom(p.ephemeral_bytes, headroom_percent))
        for p in profiles
    )
    recorded = sorted({e for _, e in sizes if e < capacity_bytes})
    # Try sizes evenly spaced from the largest down, and no reserve at all.
    tried = {0, *recorded[:: len(recorded) // -RESERVES_TRIED_MAX or -1]}
    rooms = {reserve: device_units(capacity_bytes, reserve, unit_bytes) for reserve in sorted(tried)}
    admitted_count: dict[int, int] = {}
    charge_sum: dict[int, int] = {}
    unfit = set(sizes)
    for reserve, room in rooms.items():
        charges = {size: charge_units(*size, reserve, unit_bytes) for size in sizes}
        admitted = [size for size, charge in charges.items() if charge <= room]
        admitted_count[reserve] = sum(sizes[size] for size in admitted)
        charge_sum[reserve] = sum(charge * sizes[size] for size, charge in charges.items())
        unfit.difference_update(admitted)
    if len(unfit) == len(sizes):
        return round_up(capacity_bytes // 4)
    most = max(admitted_count.values())
    best_reserve, best_charge, best_room = 0, 1, 0
    for reserve, room in rooms.items():
        if admitted_count[reserve] < most:
            continue
        charge = charge_sum[reserve] - sum(charge_units(*size, reserve, unit_bytes) * sizes[size] for size in unfit)
        # Fractions compared by cross-multiplication: no float decides about memory.
        if charge * best_room < best_charge * room or best_room == 0:
            best_reserve, best_charge, best_room = reserve, charge, room
    return best_reserve
