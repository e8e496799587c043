"""libsalus gets the framework's blocks through patched slots, through the preload if that fails, or not at all.

A test build of libsalus can refuse to patch; everything else is the real path.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.support.lane_daemon import MIB, LaneDaemon
from tests.support.torch_job import JOB, TorchJob

LIBSALUS = JOB / "libsalus"
UNPATCHED = {"SALUS_LIBRARY": str(LIBSALUS / "build" / "libsalus-points.so"), "SALUS_TEST_NO_PATCH": "1"}
PRELOAD = {"LD_PRELOAD": str(LIBSALUS / "libsalus-preload.so")}
ROOM = {"lane_bytes": 32 * MIB, "ephemeral_bytes": 32 * MIB, "device_bytes": 128 * MIB}
PROGRAM = """
import json, torch
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
rows = torch.randn(256, 64)
for _ in range(12):
    optimizer.zero_grad()
    loss = model(rows).square().mean()
    loss.backward()
    optimizer.step()
from salus_job import process
watch = process.current_watch()
figures = watch.session.figures() if watch else {}
names = ("lane_count", "live_bytes", "live_ephemeral_bytes", "live_persistent_bytes", "ephemeral_bytes")
print(json.dumps([loss.item(), {name: figures.get(name, 0) for name in names}]))
"""

StartDaemon = Callable[..., LaneDaemon]
StartJob = Callable[..., TorchJob]


@pytest.fixture
def run(start_daemon: StartDaemon, start_job: StartJob) -> Callable[..., tuple[float, dict[str, int], LaneDaemon, str]]:
    def start(**environment: str) -> tuple[float, dict[str, int], LaneDaemon, str]:
        daemon = start_daemon(**ROOM)
        job = start_job("-c", PROGRAM, daemon=daemon, **environment)
        loss, figures = json.loads(job.output())
        assert job.process.returncode == 0, job.errors
        return loss, figures, daemon, job.errors

    return start


def test_preloaded_blocks_are_placed_and_counted_as_patched_ones_are(
    run: Callable[..., tuple[float, dict[str, int], LaneDaemon, str]],
) -> None:
    patched_loss, patched, *_ = run()
    loss, figures, daemon, errors = run(**UNPATCHED, **PRELOAD)
    assert patched["lane_count"] > 0
    assert (loss, figures) == (patched_loss, patched)
    assert errors == ""
    assert not daemon.sessions[1].faults
    assert daemon.grants


def test_without_patch_and_preload_the_job_runs_in_plain_memory_and_reports_it_once(
    run: Callable[..., tuple[float, dict[str, int], LaneDaemon, str]],
) -> None:
    """It reports to the daemon, and prints only because SALUS_VERBOSE is set."""
    _, figures, daemon, errors = run(**UNPATCHED, SALUS_VERBOSE="1")
    assert figures["lane_count"] == 0
    assert [fault.text.split(":")[0] for fault in daemon.sessions[1].faults] == ["hook"]
    assert not daemon.grants, "it never waits for a turn"
    assert errors.count("\n") == 1
    assert errors.startswith("salus: hook: libc10: ")
