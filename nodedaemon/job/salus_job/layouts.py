"""The interface of libsalus for ctypes, and what this package needs of the wire format.

Written by tools/layouts.py from salus.h, cuda_lane.h and salus_wire.h: change the C side, then run `make layouts`.
"""

import ctypes
from typing import Any, ClassVar, List, Tuple

MAGIC = 0x534C4153
WIRE_VERSION = 1
TEXT_BYTES = 192
RULE_BYTES = 128
API_VERSION = 1
INTERRUPTIBLE = 256
FOLLOWER_EVENTS_MAX = 256
FRAMEWORK_NONE = 0
FRAMEWORK_TORCH = 1
HELLO_RESUME = 1
HELLO_FORKED = 2
HELLO_UNGATED = 4
FOLLOWER_NOTHING = 0
FOLLOWER_ENTER = 1
FOLLOWER_BOUNDARY = 2
FAULT = 13
FAULT_FORMAT = "<IHHIIII192s"  # header and body of a FAULT frame

FieldList = List[Tuple[str, Any]]


def _fields(kind: Any, names: str) -> FieldList:
    return [(name, kind) for name in names.split()]


class HelloOptions(ctypes.Structure):
    _fields_: ClassVar[FieldList] = [
        *_fields(ctypes.c_uint32, "size_bytes framework flags timeout_ms"),
        *_fields(ctypes.c_uint64, "model_hash input_hash"),
        *_fields(ctypes.c_char * 64, "device"),
        *_fields(ctypes.c_uint64, "declared_persistent_bytes declared_ephemeral_bytes"),
    ]


class HelloView(ctypes.Structure):
    _fields_: ClassVar[FieldList] = [
        *_fields(
            ctypes.c_uint64,
            "session device_bytes persistent_bytes ephemeral_bytes profile_persistent_bytes "
            "profile_ephemeral_bytes profile_model_hash profile_input_hash idle_release_ns",
        ),
        *_fields(ctypes.c_uint32, "flags is_gated"),
        *_fields(ctypes.c_char * 128, "rule"),
    ]


class Counters(ctypes.Structure):
    _fields_: ClassVar[FieldList] = [
        *_fields(
            ctypes.c_uint64,
            "iteration_count handover_count wait_ns iteration_ns live_bytes live_peak_bytes iteration_start_bytes "
            "iteration_peak_bytes last_iteration_bytes live_persistent_bytes live_ephemeral_bytes "
            "persistent_bytes ephemeral_bytes own_bytes private_bytes lane_bytes lane_count private_count "
            "stash_bytes stash_copied_bytes promotion_count spill_count spill_bytes_max stray_count "
            "cap_persistent_bytes cap_ephemeral_bytes",
        ),
    ]


class Entry(ctypes.Structure):
    _fields_: ClassVar[FieldList] = [
        *_fields(ctypes.c_uint64, "activity is_fast_path depth"),
    ]


class Follower(ctypes.Structure):
    _fields_: ClassVar[FieldList] = [
        *_fields(ctypes.c_int64, "at"),
        *_fields(ctypes.c_uint64, "count lap_count thread report_due_ns key pending"),
        *_fields(ctypes.c_uint64 * 256, "keys"),
    ]


class Interpreter(ctypes.Structure):
    _fields_: ClassVar[FieldList] = [
        *_fields(ctypes.c_void_p, "true_object false_object add_reference"),
    ]


class CudaRange(ctypes.Structure):
    _fields_: ClassVar[FieldList] = [
        *_fields(ctypes.c_uint64, "address size_bytes"),
    ]


# Name, result and arguments of each function.
PROTOTYPES: List[Tuple[str, Any, List[Any]]] = [
    ("salus_version", ctypes.c_uint32, []),
    ("salus_hook", ctypes.c_int, []),
    ("salus_hello", ctypes.c_int, [ctypes.c_char_p, ctypes.POINTER(HelloOptions), ctypes.POINTER(HelloView)]),
    ("salus_enter", ctypes.c_int, []),
    ("salus_exit", None, []),
    ("salus_entry_words", ctypes.POINTER(Entry), []),
    ("salus_boundary", ctypes.c_int, []),
    ("salus_follower_state", ctypes.POINTER(Follower), []),
    ("salus_follower_interpreter", None, [ctypes.POINTER(Interpreter)]),
    ("salus_follow_forward_entered", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]),
    ("salus_follow_forward_left", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_void_p]),
    ("salus_follow_loader_entered", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_void_p]),
    ("salus_follow_loader_left", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_void_p]),
    ("salus_follow_backward_entered", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_void_p]),
    ("salus_follow_backward_left", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_void_p]),
    ("salus_follow_step_entered", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_void_p]),
    ("salus_follow_step_left", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_void_p]),
    ("salus_leave", ctypes.c_int, []),
    ("salus_persist_begin", None, []),
    ("salus_persist_end", None, []),
    ("salus_counters", None, [ctypes.POINTER(Counters)]),
    ("salus_live", None, [ctypes.c_uint64, ctypes.c_uint64]),
    ("salus_reserved", None, [ctypes.c_uint64, ctypes.c_uint64]),
    ("salus_counters_reset", None, []),
    ("salus_report", ctypes.c_int, [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_char_p]),
    ("salus_fault", ctypes.c_int, [ctypes.c_char_p]),
    ("salus_off", ctypes.c_int, [ctypes.c_char_p]),
    ("salus_bye", ctypes.c_int, []),
    ("salus_reason", ctypes.c_int, [ctypes.c_char_p, ctypes.c_uint32]),
    ("salus_is_lane", ctypes.c_int, [ctypes.c_void_p]),
    (
        "salus_cuda_live",
        ctypes.c_int,
        [ctypes.POINTER(CudaRange), ctypes.c_uint32, ctypes.POINTER(CudaRange), ctypes.c_uint32],
    ),
    ("salus_cuda_will_yield", ctypes.c_int, []),
    ("salus_cuda_launch_count", ctypes.c_uint64, []),
]
