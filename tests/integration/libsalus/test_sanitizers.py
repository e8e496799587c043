"""A C program that uses all of libsalus at once, built with ASan and UBSan, three at a time in one lane."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.lane_node import LANE_MIB, MIB, STRANGERS, LaneNode
from tests.support.lane_session import DEADLINE_S, LIBSALUS
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
    ("config", "users"),
    [("", (0, 0, 0)), ("StrayAccess=trap", (0, 0, 0)), ("", STRANGERS), ("IdleRelease=3ms", (0, 0, 0))],
    ids=["peers", "trap", "domains", "idle"],
)
def test_no_sanitizer_reports_and_nothing_is_damaged(
    start_node: Callable[..., LaneNode], program: Path, config: str, users: tuple[int, ...]
) -> None:
    node = start_node(config=config)
    environment = os.environ | {"ASAN_OPTIONS": "allow_user_segv_handler=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
    sizes = {"persistent_bytes": 128 * MIB, "ephemeral_bytes": LANE_MIB * MIB}
    command = [sys.executable, "-m", "tests.support.launch", str(node.control)]
    processes = [
        subprocess.Popen(
            [*command, json.dumps(sizes | {"uid": uid}), program, node.socket, "60"],
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment | {"PYTHONPATH": str(ROOT)},
        )
        for uid in users
    ]
    try:
        outcomes = [(process.communicate(timeout=3 * DEADLINE_S)[1], process.returncode) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert outcomes == [("", 0)] * 3
    node.wait_for(lambda status: not status["sessions"], "every session has left")
