"""libsalus by ctypes: its structures, its prototypes, and where it is found. libsalus/salus.h is the specification.

Calls release the interpreter's lock, since the gate may wait.
"""

import ctypes
import os
from typing import Any, ClassVar, List, Optional, Tuple

API_VERSION = 1
FRAMEWORK_NONE = 0
FRAMEWORK_TORCH = 1
HELLO_UNGATED = 4
# A wait in the gate ends with -EINTR when a signal came, so that Python can handle it.
INTERRUPTIBLE = 0x100
TEXT_BYTES = 192
FOLLOWER_NOTHING, FOLLOWER_ENTER, FOLLOWER_BOUNDARY = range(3)
FOLLOWER_EVENTS_MAX = 256


class Options(ctypes.Structure):
    _fields_: ClassVar[List[Tuple[str, Any]]] = [
        ("size_bytes", ctypes.c_uint32),
        ("framework", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("timeout_ms", ctypes.c_uint32),
        ("model_hash", ctypes.c_uint64),
        ("input_hash", ctypes.c_uint64),
        ("device", ctypes.c_char * 64),
        ("declared_persistent_bytes", ctypes.c_uint64),
        ("declared_ephemeral_bytes", ctypes.c_uint64),
    ]


class EntryWords(ctypes.Structure):
    """salus_entry of salus.h."""

    _fields_: ClassVar[List[Tuple[str, Any]]] = [(name, ctypes.c_uint64) for name in ("activity", "is_calm", "depth")]


class Follower(ctypes.Structure):
    """salus_follower of salus.h."""

    _fields_: ClassVar[List[Tuple[str, Any]]] = [
        ("at", ctypes.c_int64),
        ("count", ctypes.c_uint64),
        ("lap_count", ctypes.c_uint64),
        ("thread", ctypes.c_uint64),
        ("report_due_ns", ctypes.c_uint64),
        ("key", ctypes.c_uint64),
        ("pending", ctypes.c_uint64),
        ("keys", ctypes.c_uint64 * 256),
    ]


class Interpreter(ctypes.Structure):
    """salus_interpreter of salus.h."""

    _fields_: ClassVar[List[Tuple[str, Any]]] = [
        (name, ctypes.c_void_p) for name in ("true_object", "false_object", "add_reference")
    ]


class Range(ctypes.Structure):
    """Device memory: salus_cuda_range of cuda_lane.h."""

    _fields_: ClassVar[List[Tuple[str, Any]]] = [("address", ctypes.c_uint64), ("size_bytes", ctypes.c_uint64)]


class View(ctypes.Structure):
    _fields_: ClassVar[List[Tuple[str, Any]]] = [
        ("session", ctypes.c_uint64),
        ("device_bytes", ctypes.c_uint64),
        ("persistent_bytes", ctypes.c_uint64),
        ("ephemeral_bytes", ctypes.c_uint64),
        ("profile_persistent_bytes", ctypes.c_uint64),
        ("profile_ephemeral_bytes", ctypes.c_uint64),
        ("profile_model_hash", ctypes.c_uint64),
        ("profile_input_hash", ctypes.c_uint64),
        ("idle_release_ns", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("is_gated", ctypes.c_uint32),
        ("rule", ctypes.c_char * 128),
    ]


FIGURES = (
    "iteration_count handover_count wait_ns iteration_ns live_bytes live_peak_bytes iteration_start_bytes "
    "iteration_peak_bytes last_iteration_bytes live_persistent_bytes live_ephemeral_bytes persistent_bytes "
    "ephemeral_bytes own_bytes private_bytes lane_bytes lane_count private_count stash_bytes stash_copied_bytes "
    "promotion_count spill_count spill_bytes_max stray_count cap_persistent_bytes cap_ephemeral_bytes"
).split()


class Figures(ctypes.Structure):
    _fields_: ClassVar[List[Tuple[str, Any]]] = [(name, ctypes.c_uint64) for name in FIGURES]


def find_library() -> str:
    given = os.environ.get("SALUS_LIBRARY")
    if given:
        return given
    folder = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "libsalus")
    driver = os.path.join(folder, "cuda", "libcuda.so.1")
    # On a GPU the same interface is part of the driver's stand-in, which the process has loaded already.
    is_cuda = driver in os.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    return driver if is_cuda else os.path.join(folder, "libsalus.so")


def load(path: Optional[str] = None) -> Any:
    """The loaded library with its prototypes set. Raises OSError where it is missing or of another version."""
    library = ctypes.CDLL(path or find_library())
    pointer = ctypes.POINTER
    prototypes: List[Tuple[str, Any, List[Any]]] = [
        ("salus_version", ctypes.c_uint32, []),
        ("salus_hook", ctypes.c_int, []),
        ("salus_hello", ctypes.c_int, [ctypes.c_char_p, pointer(Options), pointer(View)]),
        ("salus_enter", ctypes.c_int, []),
        ("salus_entry_words", pointer(EntryWords), []),
        ("salus_follower_state", pointer(Follower), []),
        ("salus_follower_interpreter", None, [pointer(Interpreter)]),
        ("salus_exit", None, []),
        ("salus_boundary", ctypes.c_int, []),
        ("salus_leave", ctypes.c_int, []),
        ("salus_persist_begin", None, []),
        ("salus_persist_end", None, []),
        ("salus_figures", None, [pointer(Figures)]),
        ("salus_figures_reset", None, []),
        ("salus_live", None, [ctypes.c_uint64, ctypes.c_uint64]),
        ("salus_reserved", None, [ctypes.c_uint64, ctypes.c_uint64]),
        ("salus_report", ctypes.c_int, [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_char_p]),
        ("salus_fault", ctypes.c_int, [ctypes.c_char_p]),
        ("salus_off", ctypes.c_int, [ctypes.c_char_p]),
        ("salus_bye", ctypes.c_int, []),
        ("salus_reason", ctypes.c_int, [ctypes.c_char_p, ctypes.c_uint32]),
        ("salus_is_lane", ctypes.c_int, [ctypes.c_void_p]),
    ]
    if hasattr(library, "salus_cuda_live"):
        prototypes += [
            ("salus_cuda_will_yield", ctypes.c_int, []),
            (
                "salus_cuda_live",
                ctypes.c_int,
                [pointer(Range), ctypes.c_uint32, pointer(Range), ctypes.c_uint32],
            ),
        ]
    for name, result, arguments in prototypes:
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    if library.salus_version() != API_VERSION:
        raise OSError(
            "load: %s: interface version %d, wanted %d" % (library._name, library.salus_version(), API_VERSION)
        )
    return library
