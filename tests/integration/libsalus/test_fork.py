"""A forked child sees the parent's blocks as they were, and nothing that it does reaches the parent or the lane."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from collections.abc import Callable

from tests.support.lane_session import MIB, SessionProcess
from tests.support.launch import launch_arguments
from tests.support.one_lane import OneLaneDaemon, Peers
from tests.support.salusd import ROOT

StartDaemon = Callable[..., OneLaneDaemon]
StartSession = Callable[..., SessionProcess]

SIZES: dict[str, object] = {"persistent_bytes": 400 * MIB, "ephemeral_bytes": 16 * MIB}
#: The result of `use_block_in_child` for a child that has a copy of the block and no lane.
ISOLATED = {"is_readable": True, "is_private": True, "is_off": True, "is_unchanged": True}


def test_a_child_of_the_holder_has_its_own_copy(one_lane: StartDaemon, start_session: StartSession) -> None:
    session = start_session(one_lane())
    session.ask("boundary")
    assert session.ask("allocate", name="dataset", size=2 * MIB + 33, fill=5)["is_lane"]
    assert session.ask("use_block_in_child", name="dataset", fill=5, child_fill=9) == ISOLATED
    assert session.ask("allocate", name="next", size=MIB, fill=6)["is_lane"], "the parent continues in the lane"
    assert session.ask("is_filled", name="dataset", fill=5)
    assert session.ask("boundary") == 0


def test_a_child_that_is_forked_while_a_peer_holds_the_lane_has_the_survivors(lent: Peers) -> None:
    _, first, second = lent
    second.ask("allocate", name="all", size=15 * MIB, fill=99)
    assert first.ask("use_block_in_child", name="kept", fill=5, child_fill=9) == ISOLATED
    assert second.ask("is_filled", name="all", fill=99)


def test_a_forked_child_can_have_a_session_of_its_own(one_lane: StartDaemon, start_session: StartSession) -> None:
    daemon = one_lane()
    parent = start_session(daemon)
    parent.ask("boundary")
    parent.ask("allocate", name="kept", size=MIB, fill=5)
    parent.ask("leave")
    attach = {"socket": str(daemon.socket), "control": str(daemon.control), "run": SIZES}
    answer = parent.ask("attach_in_child", name="kept", fill=5, **attach)
    assert answer == {"is_attached": True, "is_lane": True, "is_unchanged": True}
    assert parent.ask("is_filled", name="kept", fill=5)
    assert parent.ask("boundary") == 1


def test_loader_workers_and_children_change_nothing_in_a_pytorch_job(one_lane: StartDaemon) -> None:
    """A DataLoader worker changes rows in place, and a child allocates: a plain shared mapping breaks both."""
    daemon = one_lane()
    launch = launch_arguments(daemon, SIZES)
    program = [sys.executable, "tests/support/fork_job.py", str(daemon.socket)]
    job = subprocess.run(
        [sys.executable, *launch, *program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
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


def test_a_plain_shared_mapping_breaks_under_fork() -> None:
    """Negative control: what a child does to memory that is simply shared."""
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    child = os.fork()
    if child == 0:
        memory[0] = 9
        os._exit(0)
    os.waitpid(child, 0)
    assert memory[0] == 9
