"""The summary of a job in Slurm's AdminComment: one segment, next to those of other tools, which stay unchanged."""

import re

from accounting.reports.values import JobPage
from nodedaemon.core.types import SECOND_NS
from nodedaemon.wire.segment import SEGMENT_MARK, SUMMARY_MARK, find_word, merge_word


def summary_segment(page: JobPage) -> str:
    """A run's figures in whole seconds and percent, without unknown ones. The first run has no `run=`."""
    m = page.measures
    parts = {
        "run": page.restart_count or None,
        "held": m.held_ns // SECOND_NS,
        "occ": m.occupied_ns // SECOND_NS,
        "busy": m.busy_ns // SECOND_NS,
        "wait": m.gate_wait_ns // SECOND_NS,
        "eff": None if m.efficiency is None else round(100 * m.efficiency),
        "gain": None if m.sharing_gain is None else f"{m.sharing_gain:.2f}",
        "it": m.iteration_count,
    }
    return ";".join([SUMMARY_MARK, *(f"{name}={value}" for name, value in parts.items() if value is not None)])


def summarized_run(comment: str) -> int | None:
    """The number of the run that the summary in a comment describes; None without a summary."""
    summary = find_word(comment, SUMMARY_MARK)
    if not summary:
        return None
    number = re.search(r";run=(\d{1,9})(?:;|$)", summary)
    return int(number[1]) if number else 0


def is_ours(word: str) -> bool:
    """Whether Salus wrote this word of a comment: a summary, or the segment of admission."""
    return word.startswith((f"{SUMMARY_MARK};", f"{SEGMENT_MARK};"))


def merge_summary(comment: str, segment: str) -> str:
    """`comment` with its summary replaced or appended; every other character stays."""
    return merge_word(comment, SUMMARY_MARK, segment)


def merge_comments(stored: str, current: str) -> str:
    """Merge a job's comments: all of slurmdbd's (`stored`), and the words that only slurmctld's (`current`) has."""
    if current in stored:
        return stored
    if stored in current:
        return current
    segments = set(stored.split())
    return " ".join([stored, *(segment for segment in current.split() if segment not in segments)])
