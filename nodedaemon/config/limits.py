"""From settings to the values of core: the only place that knows both."""

from nodedaemon.config.choices import JobClass
from nodedaemon.config.keys import Settings
from nodedaemon.core.types import DeviceLimits, Rank

RANKS = {JobClass.HIGH: Rank.HIGH, JobClass.NORMAL: Rank.NORMAL, JobClass.BEST_EFFORT: Rank.BEST_EFFORT}


def device_limits(settings: Settings, capacity_bytes: int, lane_reserve_bytes: int) -> DeviceLimits:
    """What the engine must know of a device.

    `lane_reserve_bytes` is given, because with `LaneReserve=auto` it comes from the profiles and not from the file.
    """
    return DeviceLimits(
        capacity_bytes=capacity_bytes,
        lane_reserve_bytes=lane_reserve_bytes,
        lanes_max=settings.lanes.lanes_max,
        policy=settings.order.policy,
        overtakes_max=settings.order.overtakes_max,
        domain_quantum_ns=settings.lanes.domain_quantum_ns,
        idle_release_ns=settings.gate.idle_release_ns,
        fair_slack_ns=settings.order.fair_slack_ns,
        service_half_life_ns=settings.order.decay_half_life_ns or None,
        hang_timeout_ns=settings.gate.hang_timeout_ns,
        on_hang=settings.gate.on_hang,
        on_overrun=settings.lanes.on_overrun,
    )


def weight_of(settings: Settings, rank: Rank) -> int:
    """The share of a class under `fair`."""
    return {
        Rank.HIGH: settings.order.weight_high,
        Rank.NORMAL: settings.order.weight_normal,
        Rank.BEST_EFFORT: settings.order.weight_best_effort,
    }[rank]
