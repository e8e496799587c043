"""The gate pages hold best-effort sessions back while the high class uses the device."""

from types import SimpleNamespace
from typing import Any

import pytest

from nodedaemon.core import events
from nodedaemon.core.types import DeviceId, Epoch, JobClass, SessionId
from nodedaemon.drivers.device import Capabilities
from nodedaemon.service.devices.launch_gate import LaunchGate

GPU, OTHER = DeviceId("GPU-1"), DeviceId("GPU-2")


class Page:
    def __init__(self) -> None:
        self.limits: tuple[int, bool] = (0, False)

    def hold_launches(self, limit: int, *, is_held: bool) -> None:
        self.limits = (limit, is_held)


def look(*sessions: tuple[JobClass, DeviceId, bool]) -> list[tuple[int, bool]]:
    """For sessions as (class, device, holds a grant): the limits on the page of each one."""
    facts = {
        index: SimpleNamespace(
            session=index,
            job=str(index),
            device=device,
            view=SimpleNamespace(is_leaving=False, epoch=5 if is_granted else None),
        )
        for index, (_, device, is_granted) in enumerate(sessions)
    }
    jobs = {str(index): SimpleNamespace(job_class=job_class) for index, (job_class, _, _) in enumerate(sessions)}
    pages = [Page() for _ in sessions]
    roster: Any = SimpleNamespace(get=lambda index: SimpleNamespace(page=pages[index]))
    state: Any = SimpleNamespace(sessions=facts, jobs=jobs)
    settings: Any = SimpleNamespace(daemon=SimpleNamespace(best_effort_launches_max=3))
    gpu = SimpleNamespace(capabilities=Capabilities(gates_launches=True))
    configuration: Any = SimpleNamespace(for_device=lambda _: settings)
    shell: Any = SimpleNamespace(
        configuration=configuration,
        devices={GPU: gpu, OTHER: gpu},
        dispatcher=SimpleNamespace(state=state),
        roster=roster,
    )
    gate = LaunchGate(shell)
    gate.watch(events.GrantReturned(SessionId(0), Epoch(1), 1, wants_next=False), [], 0)
    return [page.limits for page in pages]


@pytest.mark.parametrize(
    ("sessions", "limits"),
    [
        ([(JobClass.HIGH, GPU, True), (JobClass.BEST_EFFORT, GPU, True)], [(0, False), (3, True)]),
        ([(JobClass.HIGH, GPU, False), (JobClass.BEST_EFFORT, GPU, True)], [(0, False), (3, False)]),
        ([(JobClass.HIGH, OTHER, True), (JobClass.BEST_EFFORT, GPU, True)], [(0, False), (0, False)]),
        ([(JobClass.HIGH, GPU, True), (JobClass.NORMAL, GPU, True)], [(0, False), (0, False)]),
    ],
)
def test_a_best_effort_session_is_held_back_only_by_a_high_grant_on_its_device(
    sessions: list[tuple[JobClass, DeviceId, bool]], limits: list[tuple[int, bool]]
) -> None:
    assert look(*sessions) == limits
