"""The adaptor's side of the loop follower: it detects when a loop repeats itself, and stores its events in libsalus.

libsalus/follower.c explains how a loop is followed, and keeps the position in it. docs/adr/0032 has the measured
gain. libsalus is not linked to Python: it gets the few addresses that it needs, and its functions are called as
built-in functions of this interpreter. In an interpreter other than CPython no loop is followed.
"""

import ctypes
import sys
from typing import Any, Callable, ClassVar, List, Optional, Tuple

from salus_job import layouts
from salus_job.boundary import BoundaryRule

MISSES_BEFORE_BACKOFF = 16
BACKOFF_MIN = 64
BACKOFF_MAX = 4096

# Calling conventions of Python's C interface.
METH_NOARGS, METH_O, METH_FASTCALL = 0x4, 0x8, 0x80

# Python keeps pointers to these, so they must never be freed.
_definitions: List[Any] = []

# A method of the rule and its arguments.
Event = Tuple[str, Tuple[Any, ...]]


class MethodDefinition(ctypes.Structure):
    """PyMethodDef."""

    _fields_: ClassVar[List[Tuple[str, Any]]] = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("text", ctypes.c_char_p),
    ]


class LoopFollower:
    """Each callable returns True if the event was expected and is complete; otherwise the watch handles the event."""

    def __init__(self, library: Any = None) -> None:
        if library is None or sys.implementation.name != "cpython":
            library, self._state = None, layouts.Follower(at=-1)
        else:
            self._state = library.salus_follower_state().contents
            self._state.at, self._state.count = -1, 0
            interpreter = layouts.Interpreter(id(True), id(False), _address(ctypes.pythonapi.Py_IncRef))
            library.salus_follower_interpreter(ctypes.byref(interpreter))
        self.forward_entered = _built_in(library, "forward_entered", METH_FASTCALL)
        self.forward_left = _built_in(library, "forward_left", METH_O)
        self.loader_entered = _built_in(library, "loader_entered", METH_NOARGS)
        self.loader_left = _built_in(library, "loader_left", METH_NOARGS)
        self.backward_entered = _built_in(library, "backward_entered", METH_NOARGS)
        self.backward_left = _built_in(library, "backward_left", METH_NOARGS)
        self.step_entered = _built_in(library, "step_entered", METH_O)
        self.step_left = _built_in(library, "step_left", METH_O)
        self._events: List[Event] = []
        self._recorded: List[Tuple[int, Event]] = []
        self._previous: Optional[List[Tuple[int, Event]]] = None
        self._rule_state: Optional[Tuple[Any, ...]] = None
        self._is_stale = False
        self._misses = 0
        self._rest = 0

    def use_thread(self, thread_id: int) -> None:
        """Follow only this thread, or none if 0. The current event has no key, because libsalus has not seen it."""
        self._state.thread, self._state.key, self._state.pending = thread_id, 0, 0

    def set_report_due(self, report_due_ns: int) -> None:
        """From this time on libsalus leaves the boundaries to the watch."""
        self._state.report_due_ns = report_due_ns

    def take_pending(self) -> int:
        """What an expected event has left to do, once: layouts.FOLLOWER_NOTHING, _ENTER or _BOUNDARY."""
        pending, self._state.pending = int(self._state.pending), layouts.FOLLOWER_NOTHING
        return pending

    @property
    def is_following(self) -> bool:
        """Whether events go to libsalus instead of the rule."""
        return bool(self._state.at >= 0)

    def record(self, rule: BoundaryRule, event: Event, fires: bool) -> None:
        """Record an event and the answer of the rule, while no loop is followed."""
        if self._rest:
            self._rest -= fires
            return
        key = int(self._state.key)
        if not key:
            self._is_stale = True
        self._recorded.append((key, event))
        if fires:
            self._end_iteration(rule)
        elif len(self._recorded) > layouts.FOLLOWER_EVENTS_MAX - 1:
            self._back_off()

    def invalidate(self) -> None:
        """A key may no longer identify its object: expect no event. Safe at any instruction (garbage collection)."""
        self._is_stale = True
        self._state.count = 0

    def stop(self, rule: BoundaryRule) -> None:
        """Replay the events that the rule has missed. From now on, events go to the rule again."""
        missed = self._events[: max(0, self._state.at)]
        self._state.at = -1
        self._misses = 0 if self._state.lap_count > MISSES_BEFORE_BACKOFF else self._misses + 2
        self._recorded, self._previous, self._rule_state = [], None, None
        for name, arguments in missed:
            getattr(rule, name)(*arguments)

    def _end_iteration(self, rule: BoundaryRule) -> None:
        recorded, self._recorded = self._recorded, []
        was_stale, self._is_stale = self._is_stale, False
        rule_state = rule.state()
        if rule_state == self._rule_state and recorded == self._previous and not was_stale:
            state = self._state
            state.keys[: len(recorded)] = [key for key, _ in recorded]
            self._events = [event for _, event in recorded]
            state.lap_count, state.at, state.count = 0, 0, len(recorded)
            # An object may have been collected since this function began.
            if self._is_stale:
                state.count = 0
            return
        self._previous, self._rule_state = recorded, rule_state
        self._misses += 1
        if self._misses >= MISSES_BEFORE_BACKOFF:
            self._back_off()

    def _back_off(self) -> None:
        """It is no use to compare a loop that does not repeat itself: try again later, at growing intervals."""
        self._misses += 1
        self._rest = min(BACKOFF_MIN << max(0, self._misses - MISSES_BEFORE_BACKOFF), BACKOFF_MAX)
        self._recorded, self._previous, self._rule_state = [], None, None


def _address(function: Any) -> Any:
    return ctypes.cast(function, ctypes.c_void_p).value


def _built_in(library: Any, event: str, flags: int) -> Callable[..., bool]:
    if library is None:
        return lambda *_: False
    name = "salus_follow_" + event
    definition = MethodDefinition(name.encode(), _address(getattr(library, name)), flags, None)
    _definitions.append(definition)
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
        ("PyCFunction_NewEx", ctypes.pythonapi)
    )
    function: Callable[..., bool] = make(ctypes.addressof(definition), None, None)
    return function
