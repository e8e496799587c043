"""Parses lists of names and of job ids: 123, 123_4, 123_[1-5%2], 123+1, 123.batch, and SLUIDs.

Steps are ignored, because Salus accounts for whole jobs.
"""

import re

from accounting.reports.selection import JobSelector
from nodedaemon.core.errors import RequestError

# A job array may have four million tasks; a request for more than this is a mistake.
TASKS_MAX = 100_000

_NUMBER = r"[0-9]{1,10}"
_ID = re.compile(
    rf"(?P<id>{_NUMBER})(?:_(?:(?P<task>{_NUMBER})|\[(?P<tasks>[^\]]*)\])|\+(?P<offset>{_NUMBER}))?(?P<step>\.\S+)?"
)
_SLUID = re.compile(r"s[0-9A-Za-z]{4,31}(?:\.\S+)?")
_RANGE = re.compile(rf"({_NUMBER})(?:-({_NUMBER})(?::({_NUMBER}))?)?")


def name_list(text: str) -> tuple[str, ...]:
    """The names in a comma-separated list."""
    return tuple(name for name in (part.strip() for part in text.split(",")) if name)


def parse_jobs(text: str) -> list[JobSelector]:
    """The jobs in a comma-separated list; RequestError names the part that is not a job id."""
    return [job for part in _split(text) for job in _parse(part)]


def _split(text: str) -> list[str]:
    # Commas inside brackets belong to the task list.
    parts = re.findall(r"(?:[^,\[]|\[[^\]]*\]?)+", text)
    return [part.strip() for part in parts if part.strip()]


def _parse(part: str) -> list[JobSelector]:
    match = _ID.fullmatch(part)
    if match is None:
        if _SLUID.fullmatch(part):
            return [JobSelector(sluid=part.partition(".")[0])]
        raise RequestError(f"invalid job id {part!r}: use a form such as 123, 123_4, 123_[1-5], 123+1 or sXXXX")
    job_id = int(match["id"])
    if match["task"] is not None:
        return [JobSelector(job_id=job_id, array_task_id=int(match["task"]))]
    if match["offset"] is not None:
        return [JobSelector(job_id=job_id, het_offset=int(match["offset"]))]
    if match["tasks"] is None:
        return [JobSelector(job_id=job_id)]
    return [JobSelector(job_id=job_id, array_task_id=number) for number in _numbers(match["tasks"], part)]


def _numbers(tasks: str, part: str) -> list[int]:
    found: list[int] = []
    # The number after % limits how many tasks run at the same time; it does not select tasks.
    for piece in tasks.partition("%")[0].split(","):
        match = _RANGE.fullmatch(piece.strip())
        low = int(match[1]) if match else 0
        high = int(match[2] or low) if match else 0
        step = int(match[3] or 1) if match else 0
        if match is None or high < low or step == 0 or len(found) + (high - low) // step >= TASKS_MAX:
            raise RequestError(
                f"invalid job id {part!r}: its tasks are not a list such as [1-5,7] of at most {TASKS_MAX} tasks"
            )
        found.extend(range(low, high + 1, step))
    return found
