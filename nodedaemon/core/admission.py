"""Decides whether a job may share a device: admits it for a charge in shards, or refuses it with every shortfall.

The functions are pure. salus-admitd calls them at submit time, and the simulator before a run. They do not decide
whether a job that fits must wait: Slurm adds up the admitted charges (core.memory), and the engine grants turns.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from nodedaemon.core.memory import SHARD_UNIT_BYTES, charge_units, device_units
from nodedaemon.core.types import DeviceId, Shortfall


class DeviceView(Struct, frozen=True):
    """A device as admission sees it."""

    device: DeviceId
    capacity_bytes: int
    lane_reserve_bytes: int
    unit_bytes: int = SHARD_UNIT_BYTES

    @property
    def units_total(self) -> int:
        return device_units(self.capacity_bytes, self.lane_reserve_bytes, self.unit_bytes)


class Admit(Struct, frozen=True):
    """The job may run on `device` for `charge_units` of its shards."""

    device: DeviceId
    charge_units: int


class Refuse(Struct, frozen=True):
    """The job can never fit with this configuration. Waiting does not help."""

    shortfalls: tuple[Shortfall, ...]


Decision = Admit | Refuse


def admit(persistent_bytes: int, ephemeral_bytes: int, device: DeviceView) -> Decision:
    """Decide whether a job of these sizes may share `device`. The sizes include headroom and are rounded."""
    charge = charge_units(persistent_bytes, ephemeral_bytes, device.lane_reserve_bytes, device.unit_bytes)
    if charge <= device.units_total:
        return Admit(device.device, charge)
    advice = "use a smaller batch or model, or ask for a whole, larger device with --gres=gpu:1"
    what, peak_bytes = f"memory of device {device.device}", persistent_bytes + ephemeral_bytes
    return Refuse((Shortfall(what, peak_bytes, device.capacity_bytes, advice=advice),))


def admit_any(persistent_bytes: int, ephemeral_bytes: int, devices: Sequence[DeviceView]) -> Decision:
    """Decide among several devices: the smallest that admits the job wins. If none does, list all shortfalls."""
    admitted: list[tuple[int, Admit]] = []
    shortfalls: list[Shortfall] = []
    for device in devices:
        decision = admit(persistent_bytes, ephemeral_bytes, device)
        if isinstance(decision, Admit):
            admitted.append((device.units_total, decision))
        else:
            shortfalls += decision.shortfalls
    if admitted:
        return min(admitted, key=lambda entry: entry[0])[1]
    return Refuse(tuple(shortfalls) or (Shortfall("devices that Salus manages", 1, 0, "devices", "ask an admin"),))
