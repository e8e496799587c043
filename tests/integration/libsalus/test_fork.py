"""A forked child sees the parent's blocks as they were, and nothing that it does reaches the parent or the lane."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.lane_daemon import MIB, LaneDaemon
from tests.support.lane_session import SessionProcess

StartDaemon = Callable[..., LaneDaemon]
StartSession = Callable[..., SessionProcess]


def test_a_child_of_the_holder_has_its_own_copy(start_daemon: StartDaemon, start_session: StartSession) -> None:
    daemon = start_daemon()
    session = start_session(daemon)
    session.ask("boundary")
    assert session.ask("take", name="dataset", size=2 * MIB + 33, fill=5)[1]
    assert session.ask("run_forked", name="dataset", fill=5, other=9) == [True, True, True, True]
    assert session.ask("take", name="next", size=MIB, fill=6)[1], "the parent goes on in the lane"
    assert session.ask("is_filled", name="dataset", fill=5)
    assert session.ask("boundary") == 0


def test_a_child_forked_while_the_lane_is_lent_has_the_survivors(
    start_daemon: StartDaemon, start_session: StartSession
) -> None:
    daemon = start_daemon()
    first, second = start_session(daemon), start_session(daemon)
    first.ask("boundary")
    first.ask("take", name="kept", size=MIB, fill=5)
    second.send("boundary")
    daemon.wait_for_waiter(second.process.pid)
    first.ask("boundary_elsewhere")
    assert second.answer() == 1
    second.ask("take", name="all", size=15 * MIB, fill=99)
    assert first.ask("run_forked", name="kept", fill=5, other=9) == [True, True, True, True]
    assert second.ask("is_filled", name="all", fill=99)


def test_a_forked_child_can_be_a_session_of_its_own(start_daemon: StartDaemon, start_session: StartSession) -> None:
    daemon = start_daemon()
    parent = start_session(daemon)
    parent.ask("boundary")
    parent.ask("take", name="kept", size=MIB, fill=5)
    parent.ask("leave")
    assert parent.ask("train_in_child", path=str(daemon.path), name="kept", fill=5) == [True, True, True]
    assert len(daemon.sessions) == 2
    assert parent.ask("is_filled", name="kept", fill=5)
    assert parent.ask("boundary") == 1


def test_torch_workers_and_children_change_nothing_of_the_parent(start_daemon: StartDaemon) -> None:
    """A DataLoader worker's in-place operation, and a child's allocations: a naive shared mapping breaks both."""
    daemon = start_daemon()
    program = Path(__file__).parents[2] / "support" / "fork_job.py"
    job = subprocess.run(
        [sys.executable, program, daemon.path], capture_output=True, text=True, timeout=120, check=True
    )
    assert json.loads(job.stdout) == {
        "hooked": 0,
        "attached": 0,
        "in_lane": [1, 1],
        "batches_doubled": True,
        "dataset_unchanged": True,
        "child_ended_well": True,
        "tensor_unchanged": True,
        "still_in_lane": 1,
        "after_bye": True,
    }


def test_a_naive_shared_mapping_breaks_under_fork() -> None:
    """Negative control for the above: what the children would do to memory that is simply shared."""
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    child = os.fork()
    if child == 0:
        memory[0] = 9
        os._exit(0)
    os.waitpid(child, 0)
    assert memory[0] == 9
