"""What a job can call: mark its iterations and declare its memory. Both calls work without Salus."""

import contextlib
from typing import Dict, Iterator, Union

from salus_job import process

UNITS: Dict[str, int] = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@contextlib.contextmanager
def iteration() -> Iterator[None]:
    """Mark one iteration. From the first use on, Salus infers no boundaries."""
    watch = process.current_watch()
    if watch is not None:
        watch.on_iteration_entered()
    try:
        yield
    finally:
        if watch is not None:
            watch.on_iteration_left()


def declare(persistent: Union[int, str], ephemeral: Union[int, str] = 0) -> bool:
    """Declare, before the first iteration, how many bytes the job keeps and how many more an iteration needs.

    Sizes are bytes or text such as "512M". A declaration never lowers what earlier runs have measured. Returns False
    without Salus, or if the job is attached already.
    """
    persistent_bytes, ephemeral_bytes = to_bytes(persistent), to_bytes(ephemeral)
    watch = process.current_watch()
    return watch is not None and watch.declare(persistent_bytes, ephemeral_bytes)


def to_bytes(size: Union[int, str]) -> int:
    if isinstance(size, str):
        number, unit = (size[:-1], size[-1].upper()) if size[-1:].isalpha() else (size, "")
        if unit and unit not in UNITS:
            raise ValueError("size %r: unknown unit; use bytes or one of K, M, G, T" % size)
        size = int(number) * UNITS.get(unit, 1)
    if size < 0:
        raise ValueError("size %d: negative; a declaration is a number of bytes" % size)
    return size
