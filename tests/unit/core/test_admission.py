"""Admission by example: admit, defer or refuse, with every shortfall."""

from __future__ import annotations

from nodedaemon.core.admission import Admit, Defer, DeviceView, JobRequest, Refuse, admit, admit_any
from nodedaemon.core.types import GIB, MIB, DeviceId, Shortfall

D0, D1 = DeviceId("d0"), DeviceId("d1")
UNIT = 16 * MIB
SMALL = JobRequest(1 * GIB, 2 * GIB)


def view(device: DeviceId = D0, capacity_gib: int = 16, reserve_gib: int = 4, **other: object) -> DeviceView:
    return DeviceView(device, capacity_gib * GIB, reserve_gib * GIB, UNIT, **other)  # type: ignore[arg-type]


def test_a_job_is_admitted_for_its_charge() -> None:
    assert admit(SMALL, view()) == Admit(D0, 64)
    assert admit(SMALL, view(units_free=64)) == Admit(D0, 64)


def test_a_job_that_no_device_can_hold_is_refused_with_its_peak() -> None:
    decision = admit(JobRequest(10 * GIB, 7 * GIB), view())
    assert decision == Refuse(
        (
            Shortfall(
                "memory of device d0",
                17 * GIB,
                16 * GIB,
                advice="use a smaller batch or model, or ask for a whole, larger device with --gres=gpu:1",
            ),
        )
    )


def test_every_reason_of_a_refusal_is_told_at_once() -> None:
    decision = admit(JobRequest(20 * GIB, 0, device_count=2), view())
    assert isinstance(decision, Refuse)
    assert [(one.what, one.needed, one.free) for one in decision.shortfalls] == [
        ("devices a job", 2, 1),
        ("memory of device d0", 20 * GIB, 16 * GIB),
    ]


def test_a_full_or_drained_device_defers_with_both_reasons() -> None:
    assert admit(SMALL, view(units_free=63, is_available=False)) == Defer(
        (
            Shortfall("device d0 is drained or lost", 1, 0, "device", "an admin resumes it"),
            Shortfall("shards of device d0", 64, 63, "shards", "wait for a job to end"),
        )
    )


def test_the_fullest_device_that_admits_wins() -> None:
    devices = [view(D0, units_free=500), view(D1, units_free=70)]
    assert admit_any(SMALL, devices) == Admit(D1, 64)
    assert admit_any(SMALL, list(reversed(devices))) == Admit(D1, 64)
    assert admit_any(SMALL, [view(D0), view(D1, capacity_gib=8)]) == Admit(D1, 64)


def test_a_device_that_can_help_later_beats_one_that_never_can() -> None:
    large = JobRequest(10 * GIB, 0)
    decision = admit_any(large, [view(D0, capacity_gib=8), view(D1, units_free=0)])
    assert decision == Defer((Shortfall("shards of device d1", 640, 0, "shards", "wait for a job to end"),))


def test_where_no_device_can_ever_hold_it_all_reasons_are_told() -> None:
    decision = admit_any(JobRequest(20 * GIB, 0), [view(D0), view(D1)])
    assert isinstance(decision, Refuse)
    assert [one.what for one in decision.shortfalls] == ["memory of device d0", "memory of device d1"]


def test_without_any_device_a_job_is_refused() -> None:
    assert admit_any(SMALL, []) == Refuse((Shortfall("devices that Salus manages", 1, 0, "devices", "ask an admin"),))
