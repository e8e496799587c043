"""Steps the wall clock of one process: on its PYTHONPATH, the file named by SALUS_TEST_CLOCK holds the offset in ns.

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
