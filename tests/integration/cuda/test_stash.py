"""Survivors on a GPU: the segments of a caching allocator stay in place, and only their live blocks are saved."""

from __future__ import annotations

from typing import Any

from tests.support.cuda_node import CudaNode
from tests.support.emulator import MIB
from tests.support.salusd import wait_until

ACTIVATIONS_MIB, SURVIVOR_KIB, HANDOVERS = 32, 256, 6


def counts_of(node: CudaNode) -> list[int]:
    return [session["handover_count"] for session in node.ask("status")["sessions"]]


def take_turns(*listing: str) -> list[dict[str, Any]]:
    """The reports of two caching loops in one lane, which overwrite each other's memory there."""
    options = ["--iterations", "1000000", "--activations-mib", str(ACTIVATIONS_MIB), "--kernel-us", "50"]
    options += ["--survivor-kib", str(SURVIVOR_KIB), "--cached"]
    with CudaNode("tiny-1g", "MaxLanes=1\nPolicy=fair") as node:
        jobs = [node.job(*options, *listing, persistent_mib=160) for _ in range(2)]
        # Both counts are read at one moment, so both loops were attached and took turns.
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


def test_only_live_blocks_are_saved_and_they_are_restored_correctly() -> None:
    for report in take_turns():
        assert report["wrong"] == 0
        # One block is live at a boundary; the segments are over a hundred times as large.
        assert 0 < report["stashed_bytes"] <= report["handovers"] * 2 * SURVIVOR_KIB * 1024, report


def test_without_a_list_whole_segments_are_saved() -> None:
    """Salus never guesses that memory is dead: a job that lists nothing pays for all of it, and computes correctly."""
    for report in take_turns("--listing", "off"):
        assert report["wrong"] == 0
        assert report["stashed_bytes"] >= (report["handovers"] - 2) * ACTIVATIONS_MIB * MIB, report


def test_data_is_wrong_if_the_list_leaves_out_live_blocks() -> None:
    """Negative control: the data depends on the list, and the check notices wrong data."""
    assert any(report["wrong"] > 0 for report in take_turns("--listing", "empty"))
