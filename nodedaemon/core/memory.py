"""The arithmetic of persistent, ephemeral, lane, device and shard bytes.

One rule must never break (docs/adr/0003-memory-rule.md): on a device the persistent bytes of all sessions plus the
sizes of all lanes fit its capacity. Slurm only adds shards up, so a job is charged its persistent bytes and what of its
ephemeral bytes exceeds the lane reserve R; then sum of charges <= C - R implies sum of P + largest E <= C.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from nodedaemon.core.types import GRANULARITY_BYTES, MIB, Profile

SHARD_UNIT_BYTES = 16 * MIB
#: Of more recorded sizes than this, evenly spaced ones are tried: a year's history has thousands that hardly differ.
RESERVES_TRIED_MAX = 256


def round_up(size_bytes: int, step_bytes: int = GRANULARITY_BYTES) -> int:
    """Round up to a multiple of `step_bytes`. Rounding down anywhere breaks the theorem."""
    return -(-size_bytes // step_bytes) * step_bytes


def with_headroom(size_bytes: int, headroom_percent: int, step_bytes: int = GRANULARITY_BYTES) -> int:
    """Size to admit with: what was measured plus headroom, rounded up to the device's granularity."""
    return round_up(-(-size_bytes * (100 + headroom_percent) // 100), step_bytes)


def charge_bytes(persistent_bytes: int, ephemeral_bytes: int, lane_reserve_bytes: int) -> int:
    """What a job takes of the C - R bytes that shards stand for."""
    return persistent_bytes + max(0, ephemeral_bytes - lane_reserve_bytes)


def charge_units(
    persistent_bytes: int, ephemeral_bytes: int, lane_reserve_bytes: int, unit_bytes: int = SHARD_UNIT_BYTES
) -> int:
    """The same in shards, rounded up; at least one, so that Slurm binds the job to a device."""
    return max(1, -(-charge_bytes(persistent_bytes, ephemeral_bytes, lane_reserve_bytes) // unit_bytes))


def device_units(capacity_bytes: int, lane_reserve_bytes: int, unit_bytes: int = SHARD_UNIT_BYTES) -> int:
    """Shards that a device has: C - R rounded down, or none where the reserve is the whole device."""
    return max(0, capacity_bytes - lane_reserve_bytes) // unit_bytes


def auto_reserve(
    profiles: Iterable[Profile], capacity_bytes: int, unit_bytes: int = SHARD_UNIT_BYTES, headroom_percent: int = 0
) -> int:
    """Choose R among the recorded ephemeral sizes: it minimises sum(charge) / (C - R) and admits every profile it can.

    A profile that no reserve admits (its peak exceeds the device) does not take part. Without any profile R is a
    quarter of the device: enough for a first job to share, little enough to leave room for persistent bytes.
    """
    # Sweeps bring thousands of equal profiles: counted once each.
    sizes = Counter(
        (with_headroom(p.persistent_bytes, headroom_percent), with_headroom(p.ephemeral_bytes, headroom_percent))
        for p in profiles
    )
    room_whole = device_units(capacity_bytes, 0, unit_bytes)
    fitting = {size: count for size, count in sizes.items() if charge_units(*size, 0, unit_bytes) <= room_whole}
    if not fitting:
        return round_up(capacity_bytes // 4)
    best_reserve, best_charge, best_room = 0, 1, 0
    # From the largest down in whole steps; 0 is the answer anyway where none of those tried will do.
    recorded = sorted({0, *(e for _, e in fitting)})
    for reserve in sorted(recorded[:: len(recorded) // -RESERVES_TRIED_MAX]):
        room = device_units(capacity_bytes, reserve, unit_bytes)
        charges = {size: charge_units(*size, reserve, unit_bytes) for size in fitting}
        if max(charges.values()) > room:
            continue
        charge = sum(charges[size] * count for size, count in fitting.items())
        # Fractions compared by cross-multiplication: no float decides about memory.
        if charge * best_room < best_charge * room or best_room == 0:
            best_reserve, best_charge, best_room = reserve, charge, room
    return best_reserve
