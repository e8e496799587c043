"""The summary of a job in Slurm's AdminComment: one word of ours among those of other tools, which stay as they are."""

import re

from accounting.reports.job_page import JobPage
from nodedaemon.wire.segment import SEGMENT_MARK, SUMMARY_MARK, find_word, merge_word

_SECOND_NS = 1_000_000_000


def summary_segment(page: JobPage) -> str:
    """The figures of a run in whole seconds and percent; n/a is left out, and so is the number of a first run."""
    m = page.measures
    parts = {
        "run": page.restart_count or None,
        "held": m.held_ns // _SECOND_NS,
        "occ": m.occupied_ns // _SECOND_NS,
        "busy": m.busy_ns // _SECOND_NS,
        "wait": m.gate_wait_ns // _SECOND_NS,
        "eff": None if m.efficiency is None else round(100 * m.efficiency),
        "gain": None if m.sharing_gain is None else f"{m.sharing_gain:.2f}",
        "it": m.iteration_count,
    }
    return ";".join([SUMMARY_MARK, *(f"{name}={value}" for name, value in parts.items() if value is not None)])


def summed_run(comment: str) -> int | None:
    """The run that the summary in a comment is about; None where there is none."""
    summary = find_word(comment, SUMMARY_MARK)
    if not summary:
        return None
    number = re.search(r";run=(\d{1,9})(?:;|$)", summary)
    return int(number[1]) if number else 0


def is_ours(word: str) -> bool:
    """Whether a word of a comment is Salus': a summary, or what admission wrote."""
    return word.startswith((f"{SUMMARY_MARK};", f"{SEGMENT_MARK};"))


def merge_summary(comment: str, segment: str) -> str:
    """`comment` with its summary replaced, or added at its end; every other character stays."""
    return merge_word(comment, SUMMARY_MARK, segment)


def joined(kept: str, living: str) -> str:
    """One comment of two that Slurm's database and its controller have of a job: `kept`, and what only `living` has."""
    if living in kept:
        return kept
    if kept in living:
        return living
    known = set(kept.split())
    return " ".join([kept, *(word for word in living.split() if word not in known)])
