"""Converts settings to the values of the core. No other module does this."""

from nodedaemon.config.keys import Settings
from nodedaemon.core.memory import auto_reserve
from nodedaemon.core.types import DeviceLimits, JobClass


def device_limits(settings: Settings, capacity_bytes: int) -> DeviceLimits:
    """The limits of a device, for the engine."""
    return DeviceLimits(
        capacity_bytes=capacity_bytes,
        lane_reserve_bytes=lane_reserve_bytes(settings, capacity_bytes),
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


def lane_reserve_bytes(settings: Settings, capacity_bytes: int) -> int:
    """The lane reserve R of a device: the configured one or, for `auto`, that of a device without profiles.

    gres.conf is generated with this number and the engine enforces it: the shards that Slurm counts and the bytes that
    salusd keeps must agree. `salus simulate` shows which R is best.
    """
    fixed_bytes = settings.lanes.lane_reserve_bytes
    return auto_reserve((), capacity_bytes) if fixed_bytes is None else fixed_bytes


def weight_of(settings: Settings, job_class: JobClass) -> int:
    """The weight of a class under `fair`."""
    return {
        JobClass.HIGH: settings.order.weight_high,
        JobClass.NORMAL: settings.order.weight_normal,
        JobClass.BEST_EFFORT: settings.order.weight_best_effort,
    }[job_class]
