"""libsalus gets the framework's blocks through patched calls, or through the preload library, or not at all.

The test build of libsalus can refuse to patch; everything else is the real path.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from nodedaemon.core.events import GrantWanted
from tests.support.lane_session import LIBSALUS, POINTS_LIBRARY
from tests.support.one_lane import OneLaneDaemon
from tests.support.torch_job import TorchJob

UNPATCHED = {"SALUS_LIBRARY": str(POINTS_LIBRARY), "SALUS_TEST_NO_PATCH": "1"}
PRELOAD = {"LD_PRELOAD": str(LIBSALUS / "libsalus-preload.so")}
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
counters = watch.session.read_counters() if watch else {}
names = ("lane_count", "live_bytes", "live_ephemeral_bytes", "live_persistent_bytes", "ephemeral_bytes")
print(json.dumps([loss.item(), {name: counters.get(name, 0) for name in names}]))
"""


@dataclass
class Outcome:
    loss: float
    counters: dict[str, int]
    errors: str
    faults: list[str]
    want_count: int


Run = Callable[..., Outcome]


@pytest.fixture
def daemon() -> Iterator[OneLaneDaemon]:
    """A daemon that no other test uses: after a failed patch, it gives later jobs the preload library."""
    with OneLaneDaemon() as daemon:
        yield daemon


@pytest.fixture
def run(daemon: OneLaneDaemon, start_job: Callable[..., TorchJob]) -> Run:
    def start(**environment: str) -> Outcome:
        job = start_job("-c", PROGRAM, daemon=daemon, **environment)
        loss, counters = json.loads(job.output())
        assert job.process.returncode == 0, job.errors
        session = daemon.attached_session(job.process.pid)
        faults = [fault["what"].split(":")[0] for fault in daemon.faults(session)]
        return Outcome(loss, counters, job.errors, faults, len(daemon.events(GrantWanted, session)))

    return start


def test_blocks_are_placed_and_counted_alike_with_patch_and_preload(run: Run) -> None:
    patched, preloaded = run(), run(**UNPATCHED, **PRELOAD)
    assert patched.counters["lane_count"] > 0
    assert (preloaded.loss, preloaded.counters) == (patched.loss, patched.counters)
    assert (preloaded.errors, preloaded.faults) == ("", [])
    assert preloaded.want_count > 0


def test_without_patch_and_preload_the_job_runs_in_plain_memory_and_the_next_one_gets_the_preload(run: Run) -> None:
    """It reports to the daemon, and prints only because SALUS_VERBOSE is set."""
    outcome = run(**UNPATCHED, SALUS_VERBOSE="1")
    assert outcome.counters["lane_count"] == 0
    assert outcome.faults == ["hook"]
    assert outcome.want_count == 0, "it never waits for a turn"
    assert outcome.errors.count("\n") == 1
    assert outcome.errors.startswith("salus: hook: libc10: ")
    following = run(**UNPATCHED)
    assert following.counters["lane_count"] > 0
    assert following.errors == ""
