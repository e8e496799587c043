"""A C program that uses all of libsalus at once, built with ASan and UBSan, three at a time in one lane."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nodedaemon.wire.messages import WelcomeFlag
from tests.support.lane_daemon import LaneDaemon
from tests.support.lane_session import DEADLINE_S, LIBSALUS

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
    "settings",
    [{}, {"flags": WelcomeFlag.TRAP}, {"is_domain_each": True}, {"idle_release_ns": 3_000_000}],
    ids=["peers", "trap", "domains", "idle"],
)
def test_no_sanitizer_speaks_and_nothing_is_damaged(
    start_daemon: Callable[..., LaneDaemon], program: Path, settings: dict[str, object]
) -> None:
    daemon = start_daemon(**settings)
    environment = os.environ | {"ASAN_OPTIONS": "allow_user_segv_handler=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
    processes = [
        subprocess.Popen([program, daemon.path, "60"], stderr=subprocess.PIPE, text=True, env=environment)
        for _ in range(3)
    ]
    try:
        outcomes = [(process.communicate(timeout=3 * DEADLINE_S)[1], process.returncode) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert outcomes == [("", 0)] * 3
    daemon.wait_until(lambda: all(session.has_said_bye for session in daemon.sessions.values()), "BYE of each")
