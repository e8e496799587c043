"""A salusd with one lane and session processes for the tests of libsalus; everything is ended with the test."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.lane_node import LaneNode
from tests.support.lane_session import LIBSALUS, SessionProcess


@pytest.fixture(scope="session", autouse=True)
def native() -> None:
    subprocess.run(["make", "-s", "-C", LIBSALUS, "all", "tests"], check=True)


@pytest.fixture
def start_node() -> Iterator[Callable[..., LaneNode]]:
    nodes: list[LaneNode] = []

    def start(**options: Any) -> LaneNode:
        nodes.append(LaneNode(**options))
        nodes[-1].start()
        return nodes[-1]

    yield start
    for node in nodes:
        node.__exit__()


@pytest.fixture
def node(start_node: Callable[..., LaneNode]) -> LaneNode:
    return start_node()


@pytest.fixture
def start_session() -> Iterator[Callable[..., SessionProcess]]:
    sessions: list[SessionProcess] = []

    def start(
        node: LaneNode | None = None,
        *,
        is_pinned: bool = False,
        flags: int = 0,
        environment: dict[str, str] | None = None,
        **sizes: int,
    ) -> SessionProcess:
        """A process; attached to the node if one is given. All that are pinned share one CPU."""
        sessions.append(SessionProcess(environment))
        if is_pinned:
            sessions[-1].ask("pin")
        if node is not None:
            node.join(sessions[-1], **sizes)
            node.attach(sessions[-1], flags)
        return sessions[-1]

    yield start
    for session in sessions:
        session.close()
