"""A C program that uses all of libsalus at once, built with ASan and UBSan, three at a time in one lane."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nodedaemon.core.events import GrantReturned
from tests.support.lane_session import DEADLINE_S, LIBSALUS, MIB
from tests.support.launch import launch_arguments
from tests.support.one_lane import OneLaneDaemon, lane_held
from tests.support.salusd import ROOT

SOURCE = Path(__file__).with_name("exercise.c")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sanitizers") / "exercise"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-pthread", "-fsanitize=address,undefined"]
    library = LIBSALUS / "build" / "libsalus-asan.so"
    subprocess.run(
        ["gcc", *flags, f"-I{LIBSALUS}", "-o", path, SOURCE, library, f"-Wl,-rpath,{library.parent}"], check=True
    )
    return path


@pytest.mark.parametrize(
    "keys",
    [{}, {"StrayAccess": "trap"}, {"LaneSharing": "account", "DomainQuantum": "0"}, {"IdleRelease": "3ms"}],
    ids=["peers", "trap", "domains", "idle"],
)
def test_the_sanitizers_find_nothing_and_no_block_is_damaged(
    one_lane: Callable[..., OneLaneDaemon], program: Path, keys: dict[str, str]
) -> None:
    daemon = one_lane(**keys)
    environment = os.environ | {"ASAN_OPTIONS": "allow_user_segv_handler=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
    sizes = {"persistent_bytes": 256 * MIB, "ephemeral_bytes": 16 * MIB}
    processes = []
    try:
        with lane_held(daemon, 16 * MIB):
            for account in ("a", "b", "c"):
                launch = [sys.executable, *launch_arguments(daemon, sizes | {"account": account})]
                command = [*launch, program, daemon.socket, "120"]
                processes.append(
                    subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
                )
            for process in processes:
                daemon.wait_state(process.pid, "waiting")
        outcomes = [(process.communicate(timeout=DEADLINE_S)[1], process.returncode) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert outcomes == [("", 0)] * 3
    sessions = [daemon.attached_session(process.pid) for process in processes]
    assert [daemon.end_reason(session) for session in sessions] == ["finished"] * 3
    assert sum(len(daemon.events(GrantReturned, session)) for session in sessions) >= 6, "they take turns"
