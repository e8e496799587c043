"""A loop whose iterations repeat exactly: its events are compared with the last iteration instead of going to the rule.

Once in an iteration of 5 ms our code is cold, and a call costs microseconds that a tight loop does not show: asking the
rule took most of the 2 % that watching cost. The rule is a machine without clock or dice: from the same state the same
events give the same answers and lead to the same state. So once an iteration has led from a state to an equal one, it
is enough to see that the events are the same again; the rule stands still meanwhile, and at the first event that
differs it is told what it missed. Where the interpreter allows it libsalus sees the expected events (lap.py).
"""

from typing import Any, List, Optional, Tuple

from salus_job.boundary import BoundaryRule

EVENTS_MAX = 256
MISSES_BEFORE_REST = 16
REST_MIN = 64
REST_MAX = 4096

# Keys of events without an object; those of modules and optimizers are made from their addresses, which are larger.
FORWARD_LEFT_OPEN = 2
FORWARD_LEFT = 4
LOADER_ENTERED = 6
LOADER_LEFT = 8
BACKWARD_ENTERED = 10
BACKWARD_LEFT = 12

# The rule's method and what it is told.
Event = Tuple[str, Tuple[Any, ...]]


class Place:
    """Where a loop is on its track: the words of libsalus' salus_lap, for a watch without libsalus."""

    __slots__ = ("at", "count", "is_passed", "keys", "laps", "last", "report_due_ns", "thread")

    def __init__(self) -> None:
        self.at = self.last = -1
        self.count = self.laps = self.thread = self.report_due_ns = self.is_passed = 0
        self.keys = [0] * (EVENTS_MAX + 1)


class Track:
    """Follows a loop; `place` is libsalus' where that follows it too, so that either may see the next event."""

    __slots__ = ("_misses", "_previous", "_rest", "_seen", "_spoiled", "_state", "events", "place")

    def __init__(self, place: Any = None) -> None:
        self.place = Place() if place is None else place
        self.place.at, self.place.count, self.place.is_passed = -1, 0, 0
        self.events: List[Event] = []
        self._seen: List[Tuple[int, Event]] = []
        self._previous: Optional[List[Tuple[int, Event]]] = None
        self._state: Optional[Tuple[Any, ...]] = None
        self._spoiled = False
        self._misses = 0
        self._rest = 0

    def take(self, key: int) -> bool:
        """Whether the event is the expected one; the next is expected then."""
        place = self.place
        at: int = place.at
        if not 0 <= at < place.count or place.keys[at] != key:
            return False
        place.at = at + 1
        return True

    def turn(self) -> bool:
        """Whether the event just taken was the boundary; the first one is expected then."""
        place = self.place
        if place.at <= place.last:
            return False
        place.at = 0
        place.laps += 1
        return True

    def take_passed(self) -> bool:
        """Whether libsalus has passed the boundary of this event, and only entering is left; true once."""
        is_passed = bool(self.place.is_passed)
        if is_passed:
            self.place.is_passed = 0
        return is_passed

    @property
    def is_followed(self) -> bool:
        """The rule is not asked, and stands still."""
        return bool(self.place.at >= 0)

    @property
    def is_at_boundary(self) -> bool:
        return bool(self.place.at == self.place.last)

    def note(self, rule: BoundaryRule, key: int, event: Event, fires: bool) -> None:
        """Off the track: an event, and what the rule has answered."""
        if self._rest:
            self._rest -= fires
            return
        self._seen.append((key, event))
        if fires:
            self._close(rule)
        elif len(self._seen) > EVENTS_MAX:
            self._take_rest()

    def spoil(self) -> None:
        """Something happened that no key tells of: no event is the expected one any more. Safe at any instruction."""
        self._spoiled = True
        self.place.count = 0

    def leave(self, rule: BoundaryRule) -> None:
        """Tell the rule what it has missed; it is asked from now on."""
        missed = self.events[: max(0, self.place.at)]
        self.place.at = -1
        self._misses = 0 if self.place.laps > MISSES_BEFORE_REST else self._misses + 2
        self._seen, self._previous, self._state = [], None, None
        for name, arguments in missed:
            getattr(rule, name)(*arguments)

    def _close(self, rule: BoundaryRule) -> None:
        seen, self._seen = self._seen, []
        # What is gone leaves its address to others: such a key tells nothing of the next iteration.
        was_spoiled, self._spoiled = self._spoiled, False
        state = rule.state()
        if state == self._state and seen == self._previous and not was_spoiled:
            place = self.place
            place.keys[: len(seen)] = [key for key, _ in seen]
            self.events = [event for _, event in seen]
            place.last, place.laps, place.at, place.count = len(seen) - 1, 0, 0, len(seen)
            if self._spoiled:
                place.count = 0
            return
        self._previous, self._state = seen, state
        self._misses += 1
        if self._misses >= MISSES_BEFORE_REST:
            self._take_rest()

    def _take_rest(self) -> None:
        """A job that does not repeat itself is not worth the comparing: try again later, ever more rarely."""
        self._misses += 1
        self._rest = min(REST_MIN << max(0, self._misses - MISSES_BEFORE_REST), REST_MAX)
        self._seen, self._previous, self._state = [], None, None
