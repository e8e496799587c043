"""Steps the wall clock of a process that has this folder on its PYTHONPATH, by the ns in the file SALUS_TEST_CLOCK.

The monotonic clock is left alone, as a step of the real clock leaves it.
"""

import os
import pathlib
import time

_FILE = pathlib.Path(os.environ["SALUS_TEST_CLOCK"])
_real_time_ns = time.time_ns


def _stepped_ns():
    return _real_time_ns() + int(_FILE.read_text() or 0)


time.time_ns = _stepped_ns
time.time = lambda: _stepped_ns() / 1e9
