"""Admission by example: admit with a charge, or refuse with every shortfall."""

from __future__ import annotations

from nodedaemon.core.admission import Admit, DeviceView, Refuse, admit, admit_any
from nodedaemon.core.types import GIB, MIB, DeviceId, Shortfall

D0, D1 = DeviceId("d0"), DeviceId("d1")
SMALL = (1 * GIB, 2 * GIB)


def view(device: DeviceId = D0, capacity_gib: int = 16, reserve_gib: int = 4) -> DeviceView:
    return DeviceView(device, capacity_gib * GIB, reserve_gib * GIB, 16 * MIB)


def test_a_job_is_admitted_for_its_charge() -> None:
    assert admit(*SMALL, view()) == Admit(D0, 64)


def test_a_job_that_the_device_cannot_hold_is_refused_with_its_peak() -> None:
    advice = "use a smaller batch or model, or ask for a whole, larger device with --gres=gpu:1"
    shortfall = Shortfall("memory of device d0", 17 * GIB, 16 * GIB, advice=advice)
    assert admit(10 * GIB, 7 * GIB, view()) == Refuse((shortfall,))


def test_the_smallest_device_that_admits_wins() -> None:
    large, small, too_small = view(D0), view(D1, capacity_gib=8), view(DeviceId("d2"), capacity_gib=4)
    assert admit_any(*SMALL, [large, small]) == Admit(D1, 64)
    assert admit_any(*SMALL, [small, too_small, large]) == Admit(D1, 64)


def test_a_job_that_no_device_can_hold_is_refused_with_all_shortfalls() -> None:
    decision = admit_any(20 * GIB, 0, [view(D0), view(D1)])
    assert isinstance(decision, Refuse)
    assert [one.what for one in decision.shortfalls] == ["memory of device d0", "memory of device d1"]


def test_without_any_device_a_job_is_refused() -> None:
    assert admit_any(*SMALL, []) == Refuse((Shortfall("devices that Salus manages", 1, 0, "devices", "ask an admin"),))
