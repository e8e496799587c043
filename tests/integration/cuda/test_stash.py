"""Survivors on a GPU: a caching allocator's segments stay where they are, and only their live blocks are saved."""

from __future__ import annotations

from typing import Any

from tests.support.cuda_node import CudaNode, wait_until
from tests.support.emulator import MIB

ACTIVATIONS_MIB, SURVIVOR_KIB, HANDOVERS = 32, 256, 6


def counts_of(node: CudaNode) -> list[int]:
    return [session["handover_count"] for session in node.ask("status")["sessions"]]


def take_turns(*listing: str) -> list[dict[str, Any]]:
    """Two caching loops in one lane: each overwrites what the other left there. Their reports."""
    options = ["--iterations", "1000000", "--activations-mib", str(ACTIVATIONS_MIB), "--kernel-us", "50"]
    options += ["--survivor-kib", str(SURVIVOR_KIB), "--cached"]
    with CudaNode("tiny-1g", "MaxLanes=1\nPolicy=fair") as node:
        jobs = [node.job(*options, *listing, persistent_mib=160) for _ in range(2)]
        # Counted of both at one moment, so that both were there and took turns.
        wait_until(lambda: len(counts := counts_of(node)) == 2 and min(counts) >= HANDOVERS, "both take turns")
        reports = []
        for job in jobs:
            job.terminate()
        for job in jobs:
            out, err = job.communicate(timeout=60)
            assert out, err
            reports.append(node.last_report(out))
    assert all(report["attached"] for report in reports), reports
    assert all(report["handovers"] >= HANDOVERS for report in reports), reports
    return reports


def test_only_live_blocks_are_saved_and_they_come_back_right() -> None:
    for report in take_turns():
        assert report["wrong"] == 0
        # One block lives at a boundary; the segments, which stay, are over a hundred times as large.
        assert 0 < report["stashed_bytes"] <= report["handovers"] * 2 * SURVIVOR_KIB * 1024, report


def test_without_a_list_whole_segments_are_saved() -> None:
    """Never guess that a survivor is dead: who says nothing pays for all of it, and is right."""
    for report in take_turns("--listing", "off"):
        assert report["wrong"] == 0
        assert report["stashed_bytes"] >= (report["handovers"] - 2) * ACTIVATIONS_MIB * MIB, report


def test_a_list_that_forgets_its_live_blocks_computes_garbage() -> None:
    """Negative control: it is the list that keeps the data right, and the check that would see if it did not."""
    assert any(report["wrong"] > 0 for report in take_turns("--listing", "empty"))
