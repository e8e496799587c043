"""Finds and loads libsalus. layouts.py has its structures and prototypes; libsalus/salus.h specifies them.

Calls release the interpreter's lock, because the gate may wait.
"""

import ctypes
import os
from typing import Any, Optional

from salus_job.layouts import API_VERSION, PROTOTYPES


def find_library() -> str:
    configured = os.environ.get("SALUS_LIBRARY")
    if configured:
        return configured
    folder = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "libsalus")
    driver = os.path.join(folder, "cuda", "libcuda.so.1")
    # On a GPU the CUDA part of libsalus has the same interface, and the process has loaded it already.
    is_cuda = driver in os.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    return driver if is_cuda else os.path.join(folder, "libsalus.so")


def load(path: Optional[str] = None) -> Any:
    """The loaded library with its prototypes set. Raises OSError if it is missing or has another version."""
    library = ctypes.CDLL(path or find_library())
    for name, result, arguments in PROTOTYPES:
        # The library for the host has no CUDA part.
        function = getattr(library, name, None)
        if function is not None:
            function.restype, function.argtypes = result, arguments
    if library.salus_version() != API_VERSION:
        raise OSError(
            "load: %s: interface version %d, expected %d" % (library._name, library.salus_version(), API_VERSION)
        )
    return library
