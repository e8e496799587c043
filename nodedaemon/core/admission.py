"""May a job share a device? Admit, defer or refuse, with every shortfall.

This is arithmetic on values: the service beside slurmctld asks it at submit, the simulator asks it where Slurm would
place, and `salus why` asks it again with other numbers. Slurm itself adds the admitted charges up (core.memory).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nodedaemon.core.memory import SHARD_UNIT_BYTES, charge_units, device_units
from nodedaemon.core.types import DeviceId, Shortfall


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What a job needs on its device: sizes with headroom, rounded to the device's granularity."""

    persistent_bytes: int
    ephemeral_bytes: int
    device_count: int = 1


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device as admission sees it. `units_free` None means: nobody counts, only ask whether it can ever fit."""

    device: DeviceId
    capacity_bytes: int
    lane_reserve_bytes: int
    unit_bytes: int = SHARD_UNIT_BYTES
    units_free: int | None = None
    is_available: bool = True

    @property
    def units_total(self) -> int:
        return device_units(self.capacity_bytes, self.lane_reserve_bytes, self.unit_bytes)


@dataclass(frozen=True, slots=True)
class Admit:
    """The job may run on `device` for `charge_units` of its shards."""

    device: DeviceId
    charge_units: int


@dataclass(frozen=True, slots=True)
class Defer:
    """Not now: waiting can help."""

    shortfalls: tuple[Shortfall, ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    """Never, as things are configured: waiting cannot help."""

    shortfalls: tuple[Shortfall, ...]


Decision = Admit | Defer | Refuse


def admit(request: JobRequest, device: DeviceView) -> Decision:
    """Decide whether `request` may share `device`.

    `Defer` means that waiting can help, `Refuse` that it never will. Both carry every shortfall, so `salus why` can
    show them all at once.
    """
    charge = charge_units(
        request.persistent_bytes, request.ephemeral_bytes, device.lane_reserve_bytes, device.unit_bytes
    )
    never = list(_impossible(request, device, charge))
    if never:
        return Refuse(tuple(never))
    waits = []
    if not device.is_available:
        waits.append(Shortfall(f"device {device.device} is drained or lost", 1, 0, "device", "an admin resumes it"))
    if device.units_free is not None and charge > device.units_free:
        waits.append(
            Shortfall(f"shards of device {device.device}", charge, device.units_free, "shards", "wait for a job to end")
        )
    return Defer(tuple(waits)) if waits else Admit(device.device, charge)


def _impossible(request: JobRequest, device: DeviceView, charge: int) -> list[Shortfall]:
    found = []
    if request.device_count != 1:
        found.append(Shortfall("devices a job", request.device_count, 1, "devices", "ask for --gres=salus:1"))
    if charge > device.units_total:
        found.append(
            Shortfall(
                f"memory of device {device.device}",
                request.persistent_bytes + request.ephemeral_bytes,
                device.capacity_bytes,
                advice="use a smaller batch or model, or ask for a whole, larger device with --gres=gpu:1",
            )
        )
    return found


def admit_any(request: JobRequest, devices: Sequence[DeviceView]) -> Decision:
    """Decide over several devices: the fullest that admits wins, so that large jobs find room elsewhere.

    Where none admits, the answer is `Defer` if waiting helps on any of them, with the shortfalls of those; otherwise
    `Refuse` with the shortfalls of all.
    """
    best: tuple[int, Admit] | None = None
    deferred: list[Shortfall] = []
    refused: list[Shortfall] = []
    for device in devices:
        decision = admit(request, device)
        if isinstance(decision, Defer):
            deferred.extend(decision.shortfalls)
        elif isinstance(decision, Refuse):
            refused.extend(decision.shortfalls)
        else:
            room = device.units_total if device.units_free is None else device.units_free
            if best is None or room < best[0]:
                best = (room, decision)
    if best is not None:
        return best[1]
    if deferred:
        return Defer(tuple(deferred))
    return Refuse(tuple(refused) or (Shortfall("devices that Salus manages", 1, 0, "devices", "ask an admin"),))
