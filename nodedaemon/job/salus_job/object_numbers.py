"""Small numbers for modules and optimizers, so that what the rule has learned holds in the next run."""

import functools
import weakref
from typing import Any, Callable, Dict, List, Tuple

# A job that creates a loss module in every iteration must not fill the tables: all later objects share this number.
NUMBER_MAX = 63


class ObjectNumbers:
    """Numbers objects in their order of appearance. `on_gone` is called when an address may be used again."""

    def __init__(self, on_gone: Callable[[], None]) -> None:
        self._on_gone = on_gone
        # The number of the object at each address, and a weak reference to the object.
        self._entries: Dict[int, Tuple[int, Any]] = {}
        self._next = 0

    def number_of(self, thing: Any) -> int:
        address = id(thing)
        if address not in self._entries:
            self._entries[address] = self._next, weakref.ref(thing, functools.partial(self._forget, address))
            self._next = min(self._next + 1, NUMBER_MAX)
        return self._entries[address][0]

    def objects(self) -> List[Any]:
        objects = (reference() for _, reference in list(self._entries.values()))
        return [thing for thing in objects if thing is not None]

    def _forget(self, address: int, _reference: Any) -> None:
        self._entries.pop(address, None)
        self._on_gone()
